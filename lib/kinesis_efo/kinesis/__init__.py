"""Reads the shards of a stream with SubscribeToShard or GetRecords: subscriptions, their retries and ends, and the list of shards."""
