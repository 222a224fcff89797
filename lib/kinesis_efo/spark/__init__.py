"""The data source for Spark, its stream reader, and the differences between Spark versions."""
