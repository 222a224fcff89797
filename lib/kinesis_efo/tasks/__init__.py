"""Reads a range in a task: which fetcher has it, and what the task counts."""
