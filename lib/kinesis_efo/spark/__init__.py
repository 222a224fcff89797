"""The data source for Spark: what Spark calls in the process that it keeps for a source, and in tasks."""
