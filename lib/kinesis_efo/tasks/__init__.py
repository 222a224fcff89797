"""Reads ranges in a task: finds and calls the fetchers that have them, and counts dropped aggregates."""
