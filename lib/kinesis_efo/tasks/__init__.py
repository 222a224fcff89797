"""Reads ranges in a Spark task: finds and calls the fetchers that serve the ranges, and counts dropped aggregates."""
