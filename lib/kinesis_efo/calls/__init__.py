"""Calls between processes of this library: addresses, TLS, the frame protocol, services, and connections to services."""
