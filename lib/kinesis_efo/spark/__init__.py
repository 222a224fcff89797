"""The data source for Spark: what Spark asks of its source process, and of tasks."""
