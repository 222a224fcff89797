"""Where a fetcher listens: on the loopback address alone, or wherever tasks on other hosts can reach it."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Final

from kinesis_efo.hosts import EVERY_ADDRESS, LOOPBACK, is_every_address, is_loopback

_BACKLOG: Final = 1024
_NO_IPV6: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""What a system says that has IPv6 turned off: its sockets can be made all the same."""


@dataclass(frozen=True, slots=True)
class Listening:
    """What a fetcher binds to, and what it tells tasks about that.

    Attributes:
        bind: Address or name to bind to.
        ports: Ports to try, in order; 0 is any free one.
        hosts: Names and addresses by which tasks elsewhere may reach it, in the order to try.
    """

    bind: str = LOOPBACK
    ports: range = range(1)
    hosts: tuple[str, ...] = ()

    @property
    def loopback_only(self) -> bool:
        """Whether nothing leaves the network namespace, so that there is nothing to encrypt."""
        return all(map(is_loopback, (self.bind, *self.hosts)))

    @property
    def on_loopback(self) -> bool:
        """Whether tasks in the same network namespace reach it at the loopback address."""
        return self.bind == LOOPBACK or is_every_address(self.bind)

    def listen(self, port: int) -> socket.socket:
        """Listen at a port. Every address means those of both families, if the system has both.

        Raises:
            OSError: The port is taken or not allowed, or the host has no such address.
        """
        if is_every_address(self.bind) and socket.has_dualstack_ipv6():
            try:
                return _server("::", port, socket.AF_INET6, both=True)
            except OSError as error:
                if error.errno not in _NO_IPV6:
                    raise
            return _server(EVERY_ADDRESS, port, socket.AF_INET)
        # A name may have several addresses; each would have another free port.
        family, *_, (address, *_) = socket.getaddrinfo(self.bind, port, type=socket.SOCK_STREAM)[0]
        return _server(str(address), port, family)

    def __str__(self) -> str:
        ports = f"port {self.ports[0]}" if len(self.ports) == 1 else f"ports {self.ports[0]}-{self.ports[-1]}"
        return f"{self.bind}, {'any free port' if self.ports[0] == 0 else ports}"


def _server(address: str, port: int, family: int, *, both: bool = False) -> socket.socket:
    return socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
