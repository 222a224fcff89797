"""The planner: holds the run's lease, and tells Spark how far each micro-batch may go."""
