"""What a Spark program calls on the driver: it loads the source, runs as a job that stops gracefully, hears of progress, runs fetchers."""
