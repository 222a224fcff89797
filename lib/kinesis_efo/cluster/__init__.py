"""Fetches in other processes, with `fetchers=N`: which fetchers there are, which shards each has, and what their buffers contain."""
