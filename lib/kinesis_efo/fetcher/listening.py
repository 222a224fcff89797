"""Where a fetcher listens: on the loopback address alone, or wherever tasks on other hosts can reach it."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from kinesis_efo.hosts import LOOPBACK, is_every_address, is_loopback


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

    def address(self, port: int) -> str:
        """The address to bind to, after a look at whether that will work: gRPC would say that it does not, and not why.

        Raises:
            OSError: The port is taken or not allowed, or the host has no such address.
        """
        # gRPC would bind to every address of a name, each with another free port.
        family, *_, (address, *_) = socket.getaddrinfo(self.bind, port, type=socket.SOCK_STREAM)[0]
        socket.create_server((address, port), family=family).close()
        return str(address)

    def __str__(self) -> str:
        ports = f"port {self.ports[0]}" if len(self.ports) == 1 else f"ports {self.ports[0]}-{self.ports[-1]}"
        return f"{self.bind}, {'any free port' if self.ports[0] == 0 else ports}"
