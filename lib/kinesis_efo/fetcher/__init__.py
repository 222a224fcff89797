"""Subscriptions and buffers put together, served over Arrow Flight."""
