"""How tasks reach a fetcher: every address that may lead to it, and the certificate that it shows there."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from kinesis_efo.hosts import LOOPBACK, bracketed

CERTIFICATE_NAME: Final = "fetcher.kinesis-efo.invalid"
"""The name in every fetcher's certificate, whatever the address by which one came."""


class FetcherAddress(msgspec.Struct, frozen=True):
    """Where a fetcher serves.

    Attributes:
        namespace: The network namespace whose loopback address it serves, from `network_namespace`; empty if it does not.
        port: Its port.
        hosts: Names and addresses that may lead to it from elsewhere, in the order to try.
        certificate: The certificate that it shows, PEM; None if it serves in the clear.
        nearby: The name of its Unix socket in that namespace; empty if it has none.
    """

    namespace: str
    port: int
    hosts: tuple[str, ...] = ()
    certificate: str | None = None
    nearby: str = ""

    def hosts_from(self, namespace: str) -> tuple[str, ...]:
        """The hosts that a caller should try, in order.

        Args:
            namespace: The caller's network namespace. In another one than the fetcher's, loopback is another fetcher's, or nobody's.
        """
        return (LOOPBACK, *self.hosts) if namespace == self.namespace else self.hosts

    def location(self, host: str) -> str:
        """This fetcher at one of its hosts, for messages."""
        scheme = "tcp" if self.certificate is None else "tls"
        return f"{scheme}://{bracketed(host)}:{self.port}"

    def __str__(self) -> str:
        return self.location(self.hosts[0] if self.hosts else LOOPBACK)


@cache
def network_namespace(proc: Path = Path("/proc")) -> str:
    """What tells the network namespace of this process from all others.

    The boot id tells machines apart, and the namespace the containers on them. A system without /proc has no namespaces.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {(proc / 'self/ns/net').readlink()}"
    except OSError:
        return socket.gethostname()
