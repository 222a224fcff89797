"""Chooses where the fetcher listens, and its addresses for tasks: only loopback in local mode, else all addresses of the host.

This works for any deployment of Spark. In doubt, tasks count as remote: connections then use TLS, and tasks in the fetcher's network
namespace still use loopback.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Final

from kinesis_efo.calls.address import Listening
from kinesis_efo.hosts import EVERY_ADDRESS, LOOPBACK, is_every_address, is_loopback
from kinesis_efo.options import SourceOptions
from kinesis_efo.spark.jvm import SparkJvm, spark_jvm

_BRIDGES: Final = ("br-", "cni", "docker", "veth", "virbr")
"""Prefixes of interfaces to containers of the same host, which have the same addresses on every host."""


def where_to_listen(options: SourceOptions) -> Listening:
    """Where the fetcher of this process listens.

    Args:
        options: The options of the query.
    """
    return choose(options, spark_jvm(os.getpid()), own_addresses)


def choose(options: SourceOptions, spark: SparkJvm, own: Callable[[], Iterable[str]]) -> Listening:
    """Where a fetcher listens.

    Args:
        options: The options of the query. `fetcherHost` and `fetcherBindHost` come before everything else. If the session has a
            loopback address for its driver, executors share its network namespace.
        spark: What is known of Spark's JVM.
        own: Returns the addresses of this host.
    """
    bind, ports = options.fetcher_bind_host, options.fetcher_ports
    told = (options.driver_host,) if options.driver_host else spark.hosts
    local = spark.local or (options.driver_host is not None and is_loopback(options.driver_host))
    hosts: tuple[str, ...]
    if options.fetcher_host:
        hosts = (options.fetcher_host,)
    elif bind and not is_every_address(bind):
        hosts = (bind,)
    elif local and not bind:
        hosts = ()
    else:
        hosts = (*told, *own())
    if bind in (None, LOOPBACK) or is_every_address(bind):
        # A client tries loopback first if it leads here; for other clients it leads elsewhere.
        hosts = tuple(dict.fromkeys(host for host in hosts if not is_loopback(host)))
    return Listening(bind or (EVERY_ADDRESS if hosts else LOOPBACK), ports, hosts)


def own_addresses() -> list[str]:
    """The addresses of this host for other hosts, IPv4 before IPv6."""
    # Imported here, because it is not needed in local mode and in tasks.
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith(_BRIDGES)}
    found = [
        ip_address(address.address)
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
        for address in addresses
        # Link-local addresses of IPv6 have a zone.
        if address.family in (socket.AF_INET, socket.AF_INET6) and "%" not in address.address
    ]
    usable = [each for each in found if not (each.is_loopback or each.is_link_local or each.is_unspecified)]
    return [str(each) for each in sorted(usable, key=lambda each: each.version)]
