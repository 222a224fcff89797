"""Host names and addresses: read from text, told apart, and put into URLs."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

LOOPBACK: Final = "127.0.0.1"
"""The address that only processes of the same network namespace reach."""

EVERY_ADDRESS: Final = "0.0.0.0"
"""What to bind to for every address of a host: those of IPv6 as well, if there is IPv6."""

_NAME: Final = re.compile(r"(?=.{1,253}\Z)[\w-]{1,63}(\.[\w-]{1,63})*\.?", re.ASCII)


def parse_host(text: str) -> str:
    """Read a host name, or an address, IPv6 with brackets or without.

    Raises:
        ValueError: It is neither, or has a port, a scheme or a zone.

    >>> parse_host(" [fd00:0::2] ")
    'fd00::2'
    """
    host = text.strip()
    if address := _address(host[1:-1] if host[:1] + host[-1:] == "[]" else host):
        if getattr(address, "scope_id", None):
            raise ValueError(text)
        return str(address)
    # No name ends in a number: such a text is an address with a fault in it.
    if not _NAME.fullmatch(host) or host.rstrip(".").rpartition(".")[2].isdecimal():
        raise ValueError(text)
    return host


def is_loopback(host: str) -> bool:
    """Whether a host is this one by definition: `localhost`, or an address such as `127.0.0.1`."""
    address = _address(host)
    return address.is_loopback if address else host.rstrip(".").lower() == "localhost"


def is_every_address(host: str) -> bool:
    """Whether a host stands for every address, which one can bind to but not connect to."""
    address = _address(host)
    return address is not None and address.is_unspecified


def bracketed(host: str) -> str:
    """A host as URLs have it."""
    return f"[{host}]" if ":" in host else host


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
