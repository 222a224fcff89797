"""Addresses of services: a Unix socket for processes of the same user in the service's network namespace, and TCP for all others.

The Unix sockets have abstract names, which belong to a network namespace, need no directory, and vanish with the process. These names have
no permissions, so each end of a connection checks the user of the other end.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from kinesis_efo.hosts import EVERY_ADDRESS, LOOPBACK, bracketed, is_every_address, is_loopback

_BACKLOG: Final = 1024
_CREDENTIALS: Final = struct.Struct("=iII")
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""Errors of `bind` on hosts that can create IPv6 sockets although IPv6 is turned off."""


class FetcherAddress(msgspec.Struct, frozen=True):
    """The address of a fetcher, or of another service of this library."""

    namespace: str  # The network namespace in which the service listens on loopback; empty if it does not use loopback
    port: int  # The TCP port
    hosts: tuple[str, ...] = ()  # Host names and IP addresses, in the order in which to try them
    certificate: str | None = None  # The service's TLS certificate as PEM; None without TLS
    nearby: str = ""  # The abstract name of the service's Unix socket in `namespace`; empty if there is none

    def hosts_from(self, namespace: str) -> tuple[str, ...]:
        """Return the hosts that a caller in `namespace` tries, in order. Loopback is included only if the service is in this namespace."""
        return (LOOPBACK, *self.hosts) if namespace == self.namespace else self.hosts

    def location(self, host: str) -> str:
        """Return the service's URL with this host, for error messages."""
        scheme = "tcp" if self.certificate is None else "tls"
        return f"{scheme}://{bracketed(host)}:{self.port}"

    def __str__(self) -> str:
        return self.location(self.hosts[0] if self.hosts else LOOPBACK)


@cache
def network_namespace(proc: Path = Path("/proc")) -> str:
    """Return a unique id of this process's network namespace. On systems without network namespaces, return the host name."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(proc / 'self/ns/net').readlink()}"
    except OSError:
        return socket.gethostname()


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a service listens: address, ports, and the host names that callers try."""

    bind: str = LOOPBACK  # The address or host name to bind to
    ports: range = range(1)  # The ports to try, in order; 0 means any free port
    hosts: tuple[str, ...] = ()  # The host names and IP addresses that callers on other hosts try, in order

    @property
    def loopback_only(self) -> bool:
        """Whether only processes in the same network namespace can connect. TLS is then not needed."""
        return all(map(is_loopback, (self.bind, *self.hosts)))

    @property
    def on_loopback(self) -> bool:
        """Whether callers in the same network namespace can use the loopback address."""
        return self.bind == LOOPBACK or is_every_address(self.bind)

    def listen(self, port: int) -> socket.socket:
        """Listen at a port. If `bind` is the wildcard address, listen on IPv4 and IPv6. Raises `OSError` on failure."""
        if is_every_address(self.bind) and socket.has_dualstack_ipv6():
            try:
                return _server("::", port, socket.AF_INET6, both=True)
            except OSError as error:
                if error.errno not in _NO_IPV6:
                    raise
            return _server(EVERY_ADDRESS, port, socket.AF_INET)
        # Use only the first address of a host name: with port 0, each address would get a different port.
        family, *_, (address, *_) = socket.getaddrinfo(self.bind, port, type=socket.SOCK_STREAM)[0]
        return _server(str(address), port, family)

    def __str__(self) -> str:
        ports = f"port {self.ports[0]}" if len(self.ports) == 1 else f"ports {self.ports[0]}-{self.ports[-1]}"
        return f"{self.bind}, {'any free port' if self.ports[0] == 0 else ports}"


def _server(address: str, port: int, family: int, *, both: bool = False) -> socket.socket:
    return socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def listen_nearby() -> socket.socket | None:
    """Return a listening Unix socket with a random abstract name; None on systems without abstract names."""
    if sys.platform != "linux":
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(f"\0kinesis-efo-{secrets.token_hex(16)}")
    sock.listen(_BACKLOG)
    return sock


def connect_nearby(name: str, seconds: float) -> socket.socket:
    """Connect to an abstract Unix socket. Raises `OSError` if it does not exist in this network namespace or belongs to another user."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(f"\0{name}")
        if not is_own(sock):
            raise PermissionError("a process of another user listens there")
    except BaseException:
        sock.close()
        raise
    return sock


def is_own(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket belongs to this user. Always True on systems other than Linux."""
    if sys.platform != "linux":
        return True
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())
