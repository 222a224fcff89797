"""Remote calls between this library's processes: addresses, TLS, the frame protocol, services, and connections to services."""
