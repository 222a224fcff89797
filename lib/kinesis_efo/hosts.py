"""Parses and classifies host names and addresses, and formats them for URLs."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

LOOPBACK: Final = "127.0.0.1"
"""An address that only processes in the same network namespace can reach."""

EVERY_ADDRESS: Final = "0.0.0.0"
"""The address to bind to in order to listen on all addresses of a host, including IPv6 if available."""

_NAME: Final = re.compile(r"(?=.{1,253}\Z)[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)


def parse_host(text: str) -> str:
    """Parse a host name or an address, which may be IPv6 with or without brackets. Raises ValueError if it is invalid.

    >>> parse_host(" [fd00:0::2] ")
    'fd00::2'
    """
    host = text.strip()
    if address := _address(host[1:-1] if host[:1] + host[-1:] == "[]" else host):
        if getattr(address, "scope_id", None):
            raise ValueError(text)
        return str(address)
    # Reject a numeric last label: it cannot belong to a host name, so the text is an invalid IPv4 address.
    if not _NAME.fullmatch(host) or host.rstrip(".").rpartition(".")[2].isdecimal():
        raise ValueError(text)
    return host


def is_loopback(host: str) -> bool:
    """Whether a name or address always means this host: `localhost`, or an address such as `127.0.0.1`."""
    address = _address(host)
    return address.is_loopback if address else host.rstrip(".").lower() == "localhost"


def is_every_address(host: str) -> bool:
    """Whether an address means all addresses of a host: a server can bind to it, but a client cannot connect to it."""
    address = _address(host)
    return address is not None and address.is_unspecified


def bracketed(host: str) -> str:
    """Format a host for URLs: IPv6 addresses get brackets."""
    return f"[{host}]" if ":" in host else host


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
