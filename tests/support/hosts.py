"""Hosts for tests: network namespaces with addresses, a host name and a loopback of their own, all on one switch.

They share what containers on one machine share: the boot id, the process ids and the file system. Made with `ip`, which needs root;
`Hosts` raises `NoHosts` where they cannot be made.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from tests.support.commands import outcome
from tests.support.missing import not_here
from tests.support.world import wait_until

_SWITCH: Final = "switch"
_OUTSIDE: Final = "outside"
_NAMESPACES: Final = Path("/run/netns")
_LISTENING: Final = "0A"
# `ip netns exec` gives every command mounts of its own. What follows gives it the host's name, and the names of the others.
_AS_HOST: Final = 'mount --bind "$1" /etc/hosts && printf %s "$2" > /proc/sys/kernel/hostname && shift 2 && exec "$@"'
# Rules that drop packets have to come before the table of the host's own addresses, which is rule 0 by default.
_RULES: Final = ("rule add pref 100 lookup local", "rule del pref 0 lookup local")
_numbers = itertools.count()


class NoHosts(Exception):
    """Hosts cannot be made here; says why."""


class _Card:
    """A network card: the addresses of number `number` in a network, and how others find it."""

    def __init__(self, network: int, number: int) -> None:
        self.address = f"198.{18 + network // 256}.{network % 256}.{number}"
        self.address6 = f"fdef:0:0:{network:x}::{number:x}" if Path("/proc/sys/net/ipv6").exists() else None
        self.mac = f"02:00:00:00:00:{number:02x}"

    def addresses(self, device: str) -> list[str]:
        """What gives a device these addresses."""
        lines = [f"address add {self.address}/24 dev {device}"]
        return lines + ([f"address add {self.address6}/64 dev {device} nodad"] if self.address6 else [])

    def neighbours(self, device: str) -> list[str]:
        """What makes this card known to another host. Where nobody asks who is there, nobody learns that a host is cut."""
        known = [address for address in (self.address, self.address6) if address]
        return [f"neighbour add {address} lladdr {self.mac} dev {device} nud permanent" for address in known]


class Host:
    """One host. Made by `Hosts`.

    Attributes:
        name: Its host name; every host of the network resolves it.
        address: Its IPv4 address, which the test's own process reaches as well.
        address6: Its IPv6 address; None where the system has none.
        namespace: What `ip netns` calls it.
    """

    def __init__(self, name: str, namespace: str, switch: str, card: _Card, names: Path) -> None:
        self.name = name
        self.address = card.address
        self.address6 = card.address6
        self.namespace = namespace
        self.card = card
        self._switch = switch
        self._names = names
        self._started: list[subprocess.Popen[bytes]] = []

    def popen(
        self, args: Sequence[str], *, log: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command on this host, in a process group of its own, with a pipe to its stdin.

        Args:
            args: The command.
            log: The file that its stdout and stderr are appended to; without one they are pipes.
            env: All of its environment; that of this process if None.
        """
        command = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", _AS_HOST, "sh"]
        command += [str(self._names), self.name, *args]
        stdin, pipe = subprocess.PIPE, subprocess.PIPE
        if log is None:
            process = subprocess.Popen(command, stdin=stdin, stdout=pipe, stderr=pipe, env=env, start_new_session=True)
        else:
            with log.open("ab") as file:
                process = subprocess.Popen(
                    command, stdin=stdin, stdout=file, stderr=subprocess.STDOUT, env=env, start_new_session=True
                )
        self._started.append(process)
        return process

    def run(self, *args: str, seconds: float = 60.0) -> str:
        """Run a command on this host to its end.

        Returns:
            What it wrote to stdout.

        Raises:
            AssertionError: It failed; the message has its stderr.
        """
        with self.popen(args) as process:
            out, err = process.communicate(timeout=seconds)
        assert process.returncode == 0, f"{args} on {self.name}: {err.decode()}"
        return out.decode()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Makes sockets of this thread, and of the threads that it starts, those of the host."""
        with Path("/proc/thread-self/ns/net").open() as home, (_NAMESPACES / self.namespace).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def processes(self, word: str = "") -> list[psutil.Process]:
        """What runs on this host, or that part of it whose command line has a word in it.

        psutil stops a process without its knowing (`suspend`), lets it go on (`resume`) and kills it.
        """
        found = []
        for pid in _ip("netns", "pids", self.namespace).split():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                if word in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def listening(self, process: psutil.Process) -> set[int]:
        """The TCP ports that a process of this host listens on; none where it has ended."""
        sockets, ports = set(), set()
        with suppress(FileNotFoundError, ProcessLookupError):
            for file in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    sockets.add(file.readlink().name.removeprefix("socket:[").removesuffix("]"))
            for table in ("tcp", "tcp6"):
                for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == _LISTENING and fields[9] in sockets:
                        ports.add(int(fields[1].rpartition(":")[2], 16))
        return ports

    def kill(self) -> None:
        """SIGKILL to all that runs on this host; returns when nothing does."""

        def quiet() -> bool:
            # What has just been started is not in the namespace yet.
            for started in self._started:
                started.kill()
            for process in self.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return all(started.poll() is not None for started in self._started) and not self.processes()

        wait_until(quiet, what=f"the end of all that runs on {self.name}")
        for started in self._started:
            for pipe in (started.stdin, started.stdout, started.stderr):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        self._started.clear()

    def cut(self) -> None:
        """Take the host off the network: what is sent to it or by it is lost, and nobody is told."""
        _ip("-n", self._switch, "link", "set", self.name, "down")

    def mend(self) -> None:
        """Undo `cut`."""
        _ip("-n", self._switch, "link", "set", self.name, "up")

    def block(self, port: int) -> None:
        """Drop what comes in to a TCP port that this host listens on, as firewalls do; open connections fall silent, too."""
        for family in self._families():
            _ip(family, "-n", self.namespace, "rule", "add", *_blocking(port))

    def unblock(self, port: int) -> None:
        """Undo `block`."""
        for family in self._families():
            _ip(family, "-n", self.namespace, "rule", "del", *_blocking(port))

    @contextmanager
    def lonely_address(self, address: str) -> Iterator[None]:
        """Gives the host another IPv4 address, which nobody else has a route to."""
        _ip("-n", self.namespace, "address", "add", f"{address}/32", "dev", "lo")
        try:
            yield
        finally:
            _ip("-n", self.namespace, "address", "del", f"{address}/32", "dev", "lo")

    def _families(self) -> Sequence[str]:
        return ("-4", "-6") if self.address6 else ("-4",)

    def make(self) -> None:
        _ip("netns", "add", self.namespace)
        _ip(
            *("link", "add", "eth0", "netns", self.namespace, "address", self.card.mac),
            *("type", "veth", "peer", "name", self.name, "netns", self._switch),
        )
        _ip("-n", self._switch, "link", "set", self.name, "master", _SWITCH, "up")
        _ip(
            "-n",
            self.namespace,
            "-batch",
            "-",
            lines=("link set lo up", "link set eth0 up", *self.card.addresses("eth0")),
        )
        for family in self._families():
            _ip(family, "-n", self.namespace, "-batch", "-", lines=_RULES)


class Hosts:
    """Hosts on one network, which this process reaches as well. A context manager; at its end nothing is left of them.

    What runs that were killed have left behind, the next run removes.

    Args:
        names: The names of the hosts; at most 15 characters each, as a device on the switch has its host's name.
        directory: For files that the hosts need.

    Raises:
        NoHosts: They cannot be made here.
    """

    def __init__(self, names: Sequence[str], directory: Path) -> None:
        self._prefix = f"{_prefix(os.getpid())}{next(_numbers)}-"
        switch = self._prefix + _SWITCH
        try:
            _remove_leftovers()
            network = _free_network()
            _make_switch(switch)
        except (OSError, subprocess.CalledProcessError) as error:
            with suppress(OSError):
                _remove(self._prefix)
            raise NoHosts(_reason(error)) from None
        names_file = directory / "hosts"
        self._hosts = {
            name: Host(name, self._prefix + name, switch, _Card(network, number), names_file)
            for number, name in enumerate(names, start=1)
        }
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{host.address} {host.name}" for host in self)]
        names_file.write_text("\n".join(lines) + "\n")
        try:
            for host in self:
                host.make()
            self._connect_this_process(switch, network)
            for host in self:
                known = [line for other in self if other is not host for line in other.card.neighbours("eth0")]
                _ip("-n", host.namespace, "-batch", "-", lines=known)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs on the hosts, and remove them."""
        for host in self:
            if (_NAMESPACES / host.namespace).exists():
                host.kill()
        _remove(self._prefix)

    def _connect_this_process(self, switch: str, network: int) -> None:
        me = _Card(network, 254)
        # Names of devices have at most 15 characters.
        device = self._prefix.rstrip("-")
        _ip(*("link", "add", device, "address", me.mac), *("type", "veth", "peer", "name", _OUTSIDE, "netns", switch))
        _ip("-n", switch, "link", "set", _OUTSIDE, "master", _SWITCH, "up")
        known = [line for host in self for line in host.card.neighbours(device)]
        _ip("-batch", "-", lines=(f"link set {device} up", *me.addresses(device), *known))
        for host in self:
            _ip("-n", host.namespace, "-batch", "-", lines=me.neighbours("eth0"))


def needed_hosts(names: Sequence[str], directory: Path) -> Hosts:
    """Make hosts; skips the test where that is not possible. Arguments as `Hosts`."""
    try:
        return Hosts(names, directory)
    except NoHosts as error:
        not_here(f"network namespaces cannot be made here ({error}); install iproute2 and run the tests as root")


def _prefix(pid: int) -> str:
    return f"efo{pid}-"


def _blocking(port: int) -> Sequence[str]:
    return ("pref", "10", "iif", "eth0", "ipproto", "tcp", "dport", str(port), "blackhole")


def _free_network() -> int:
    """A number whose network, of those that are set aside for tests of networks (RFC 2544), this machine does not use."""
    for number in range(os.getpid(), os.getpid() + 512):
        network = number % 512
        if not _ip("-o", "-4", "address", "show", "to", f"198.{18 + network // 256}.{network % 256}.0/24"):
            return network
    raise OSError("all networks of 198.18.0.0/15 are in use")


def _make_switch(namespace: str) -> None:
    """The switch is in a namespace of its own, because the system's firewall may filter what its own bridges forward."""
    _ip("netns", "add", namespace)
    _ip("-n", namespace, "link", "add", _SWITCH, "type", "bridge", "mcast_snooping", "0")
    _ip("-n", namespace, "link", "set", _SWITCH, "up")
    # All that a host needs, tried once.
    _ip("netns", "exec", namespace, "unshare", "--uts", "sh", "-c", _AS_HOST, "sh", "/dev/null", _SWITCH, "true")


def _remove_leftovers() -> None:
    if not _NAMESPACES.is_dir():
        return
    for path in list(_NAMESPACES.iterdir()):
        made_by = re.match(_prefix(0).replace("0", r"(\d+)"), path.name)
        if made_by and not psutil.pid_exists(int(made_by[1])):
            _remove(made_by[0])


def _remove(prefix: str) -> None:
    if not _NAMESPACES.is_dir():
        return
    for path in list(_NAMESPACES.glob(f"{prefix}*")):
        # Somebody else may clean up at the same time.
        with suppress(subprocess.CalledProcessError):
            for pid in _ip("netns", "pids", path.name).split():
                with suppress(psutil.Error):
                    psutil.Process(int(pid)).kill()
            _ip("netns", "delete", path.name)


def _ip(*args: str, lines: Sequence[str] = ()) -> str:
    return outcome(["ip", *args], seconds=60, input="\n".join(lines), check=True).stdout


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} is missing"
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr).strip().splitlines()[0] if error.stderr.strip() else str(error)
    return str(error)


def _enter(namespace: int) -> None:
    # Python 3.12 has os.setns.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
