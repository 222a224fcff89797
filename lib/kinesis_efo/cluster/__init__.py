"""Support for `fetchers=N`: manages fetchers in other processes, the shards assigned to them, and the contents of their buffers."""
