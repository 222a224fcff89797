"""Calls between processes of this library: addresses, TLS, frames, services and connections to them."""
