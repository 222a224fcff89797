"""Reads streams with SubscribeToShard or GetRecords: lists shards, opens subscriptions, retries failed calls, and detects lost records."""
