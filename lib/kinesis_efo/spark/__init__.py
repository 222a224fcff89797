"""The Spark data source: the parts that Spark calls in a source's Python process on the driver, and in tasks."""
