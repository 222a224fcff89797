"""What a Spark program calls on the driver, to load the source, run as a job that stops gracefully, hear of progress, and run fetchers."""
