"""Lets the queries of a run share one subscription per shard, and lets a query that is behind catch up by itself."""
