"""The Spark side: the data source, its stream reader, and what differs between Spark versions."""
