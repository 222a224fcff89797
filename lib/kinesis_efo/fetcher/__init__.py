"""Subscriptions and buffers put together, served to tasks."""
