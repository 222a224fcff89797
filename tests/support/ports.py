"""Ports that stay free until a test takes them."""

import os
import socket
from pathlib import Path


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True


def free_ports(count: int = 1) -> range:
    """Free ports one after the other that the system gives to nobody who asks for any port, nor this to other test processes.

    Args:
        count: How many.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = lowest - 1_000 * (1 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")))
    while any(_is_taken(port) for port in range(first, first + count)):
        first += count
    return range(first, first + count)


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return True
    return False
