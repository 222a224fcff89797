"""Functions for Spark programs on the driver: load the source, stop gracefully, report progress, tune Spark, and start fetchers."""
