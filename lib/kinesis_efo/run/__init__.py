"""The run of a program: a process of its own, which holds the leases and plans for each query."""
