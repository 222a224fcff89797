"""Reads ranges in a Spark task: finds and calls the fetchers that serve them, and counts dropped aggregates."""
