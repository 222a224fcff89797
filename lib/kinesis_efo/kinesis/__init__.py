"""Reads a shard: SubscribeToShard and GetRecords, its restarts and its end; the shards of a stream."""
