"""Batch reads: a range of each shard, planned once and read with GetRecords, without a consumer and without leases."""
