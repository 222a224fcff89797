"""The planner: the process that Spark starts for a query's source. It joins or starts a run of its Spark program, and calls the run."""
