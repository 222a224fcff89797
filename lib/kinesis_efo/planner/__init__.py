"""The run and its queries: holds the leases, and plans micro-batches for the clients of Spark."""
