"""What a Spark program uses on the driver: loading the source, jobs that stop gracefully, progress listeners, and fetchers."""
