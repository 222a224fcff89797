"""Fetching in other processes, with `fetchers=N`: the fetchers, the shards assigned to each, and what their buffers contain."""
