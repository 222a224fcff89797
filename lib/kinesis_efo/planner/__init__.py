"""The planner, in the process that Spark starts for a source: finds the run of its Spark program, or starts one, and calls it."""
