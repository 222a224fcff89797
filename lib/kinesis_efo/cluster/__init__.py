"""The fetchers of `fetchers=N`: which there are, which shards each has, and what the run knows of their buffers."""
