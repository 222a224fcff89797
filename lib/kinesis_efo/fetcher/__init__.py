"""Subscribes to shards, buffers their events, and serves them to tasks."""
