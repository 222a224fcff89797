"""One subscription for several queries: who reads the shared buffer of a shard, and who catches up."""
