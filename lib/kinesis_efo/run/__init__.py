"""The run of a Spark program: the process that owns the leases and plans the micro-batches of all the program's queries."""
