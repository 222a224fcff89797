"""Chooses the addresses on which the fetcher listens for tasks: only loopback in local mode, else all addresses of the host.

This works for any deployment of Spark. If in doubt, tasks count as remote: connections then use TLS, and tasks in the fetcher's network
namespace still use loopback.

The process that Spark starts for a stream reader does not receive the Spark configuration. The command line of Spark's JVM may be outdated,
because the program may have chosen another master later. So this module inspects the JVM's threads to find out whether it runs tasks.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from kinesis_efo.calls.address import Listening
from kinesis_efo.hosts import EVERY_ADDRESS, LOOPBACK, is_every_address, is_loopback, parse_host
from kinesis_efo.options import SourceOptions
from kinesis_efo.processes import read_stat

_PROC: Final = Path("/proc")
_BRIDGES: Final = ("br-", "cni", "docker", "veth", "virbr")
"""Name prefixes of this host's interfaces for containers. Their addresses are the same on every host, so other hosts cannot use them."""
_RUNS_TASKS: Final = "executor-heartb"
"""Name of a thread that every JVM has if it runs tasks, cut by Linux to 15 characters. A driver runs tasks only in local mode."""
_EXECUTOR: Final = re.compile(r"org\.apache\.spark\..*ExecutorBackend")
_DRIVER_HOST: Final = "spark.driver.host"
_DRIVER_HOST_LINE: Final = re.compile(r"^\s*spark\.driver\.host(?:\s*[=:]\s*|\s+)(\S+)\s*$", re.MULTILINE)


class SparkJvm(NamedTuple):
    """Properties of Spark's JVM, as found by `spark_jvm`. They have their default values if the JVM is not visible."""

    local: bool = False  # Whether the JVM runs all tasks itself, on this host
    hosts: tuple[str, ...] = ()  # The JVM's host name or address, if configured


def where_to_listen(
    options: SourceOptions, spark: SparkJvm | None = None, own: Callable[[], Iterable[str]] | None = None
) -> Listening:
    """Choose where the fetcher of this process listens. The option `fetcherHost` has precedence."""
    spark = spark_jvm(os.getpid()) if spark is None else spark
    bind, ports = options.fetcher_bind_host, options.fetcher_ports
    own = own or own_addresses
    if bind is None and options.fetcher_host and options.fetcher_host in own():
        bind = options.fetcher_host
    told = (options.driver_host,) if options.driver_host else spark.hosts
    # Count tasks as local if the driver's address is a loopback address: all executors are then in the driver's network namespace.
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
        # Leave out loopback addresses: clients in this network namespace try them anyway, and elsewhere they denote another host.
        hosts = tuple(dict.fromkeys(host for host in hosts if not is_loopback(host)))
    return Listening(bind or (EVERY_ADDRESS if hosts else LOOPBACK), ports, hosts)


def own_addresses() -> list[str]:
    """Return the addresses at which other hosts can reach this host, IPv4 before IPv6."""
    # Import lazily, because local mode and tasks do not need psutil.
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup and not name.startswith(_BRIDGES)}
    found = [
        ip_address(address.address)
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
        for address in addresses
        # Exclude link-local IPv6 addresses, which have a zone after a `%`.
        if address.family in (socket.AF_INET, socket.AF_INET6) and "%" not in address.address
    ]
    usable = [each for each in found if not (each.is_loopback or each.is_link_local or each.is_unspecified)]
    return [str(each) for each in sorted(usable, key=lambda each: each.version)]


def spark_jvm(pid: int, environment: Mapping[str, str] = os.environ, proc: Path = _PROC) -> SparkJvm:
    """Inspect the nearest JVM among the ancestors of a process."""
    for above in _ancestors(pid, proc):
        arguments = _arguments(above)
        if Path(arguments[0]).name == "java":
            executor = any(map(_EXECUTOR.fullmatch, arguments))
            hosts: tuple[str, ...] = ()
            with suppress(ValueError):
                hosts = (parse_host(_advertised(arguments, above / "cwd", environment, executor=executor)),)
            return SparkJvm(not executor and _runs_tasks(above), hosts)
    return SparkJvm()


def _ancestors(pid: int, proc: Path) -> Iterator[Path]:
    while stat := read_stat(pid, proc):
        pid = int(stat.parent)
        yield proc / str(pid)


def _arguments(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return [""]


def _runs_tasks(process: Path) -> bool:
    for thread in (process / "task").glob("*/comm"):
        try:
            if thread.read_text().strip() == _RUNS_TASKS:
                return True
        except OSError:
            continue
    return False


def _advertised(arguments: Sequence[str], directory: Path, environment: Mapping[str, str], *, executor: bool) -> str:
    """Return the host configured for a JVM, in Spark's order of precedence; empty if none is configured."""
    if executor:
        return _after("--hostname", arguments)
    for argument in arguments:
        name, _, value = argument.removeprefix("-D").partition("=")
        if name == _DRIVER_HOST:
            return value
    properties = _after("--properties-file", arguments)
    home = environment.get("SPARK_HOME")
    defaults = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    if properties or defaults:
        try:
            text = (directory / (properties or f"{defaults}/spark-defaults.conf")).read_text(errors="replace")
        except OSError:
            text = ""
        if found := _DRIVER_HOST_LINE.findall(text):
            # Remove the backslashes with which Java escapes colons.
            return str(found[-1]).replace("\\", "")
    return environment.get("SPARK_LOCAL_HOSTNAME") or environment.get("SPARK_LOCAL_IP") or ""


def _after(name: str, arguments: Sequence[str]) -> str:
    return next((value for option, value in pairwise(arguments) if option == name), "")
