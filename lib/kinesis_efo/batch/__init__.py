"""Batch reads: a range of each shard is planned once and read with GetRecords. They need neither a consumer nor leases."""
