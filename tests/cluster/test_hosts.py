"""The hosts of the tests are what they say: apart from each other, cut off silently, and gone afterwards."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.hosts import Host, Hosts, needed_hosts
from tests.support.missing import EVERYTHING, not_here
from tests.support.world import wait_until

SOON = 0.5
"""Seconds. What is answered is answered within milliseconds."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with needed_hosts(("left", "right"), tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture(params=[4, 6])
def reached(request: pytest.FixtureRequest) -> Callable[[Host], str]:
    """The address of a host in one version of IP."""

    def address(host: Host) -> str:
        if request.param == 4:
            return host.address
        if host.address6 is None:
            not_here("there is no IPv6 here; load its module, or boot without ipv6.disable")
        return host.address6

    return address


@contextmanager
def echoing(host: Host, address: str) -> Iterator[int]:
    """Answers everything that one connection sends; yields the port."""
    with host.entered():
        server = listening(address)

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            while received := connection.recv(100):
                connection.sendall(received)

    thread = threading.Thread(target=answer)
    thread.start()
    with server:
        yield server.getsockname()[1]
        thread.join()


def listening(address: str) -> socket.socket:
    return socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def test_a_cut_host_is_silent_until_mended(hosts: Hosts, reached: Callable[[Host], str]) -> None:
    right = hosts["right"]
    address = reached(right)
    with echoing(right, address) as port, socket.create_connection((address, port), 5) as connection:
        connection.sendall(b"one")
        assert connection.recv(3) == b"one"
        right.cut()
        try:
            connection.settimeout(SOON)
            connection.sendall(b"two")
            with pytest.raises(TimeoutError):
                connection.recv(3)
            with pytest.raises(TimeoutError):
                socket.create_connection((address, port), SOON)
        finally:
            right.mend()
        connection.settimeout(30)
        assert connection.recv(3) == b"two", "TCP sends again what was lost"


def test_a_blocked_port_is_silent_and_others_stay_open(hosts: Hosts, reached: Callable[[Host], str]) -> None:
    right = hosts["right"]
    address = reached(right)
    with (
        echoing(right, address) as port,
        echoing(right, address) as other,
        socket.create_connection((address, port), 5) as before,
    ):
        right.block(port)
        try:
            with pytest.raises(TimeoutError):
                socket.create_connection((address, port), SOON)
            before.settimeout(SOON)
            before.sendall(b"x")
            with pytest.raises(TimeoutError):
                before.recv(1)
            socket.create_connection((address, other), 5).close()
        finally:
            right.unblock(port)
        before.settimeout(30)
        assert before.recv(1) == b"x"


def test_the_next_run_removes_leftovers_of_a_killed_one(hosts: Hosts, tmp_path: Path) -> None:
    program = (
        "import json, sys, pathlib; from tests.support.hosts import Hosts\n"
        "hosts = Hosts(('alone',), pathlib.Path(sys.argv[1]))\n"
        "process = hosts['alone'].popen(['sleep', '1000'])\n"
        "print(json.dumps([hosts['alone'].namespace, process.pid]), flush=True); sys.stdin.read()"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(("lib", "."))},
    ) as killed:
        assert killed.stdout is not None
        namespace, pid = json.loads(killed.stdout.readline())
        killed.kill()
    left = Path("/run/netns", namespace)
    assert left.exists()
    assert psutil.pid_exists(pid)
    with Hosts(("next",), tmp_path):
        assert not left.exists()
        wait_until(lambda: not psutil.pid_exists(pid), what="the end of what the killed run has started")


def test_without_hosts_tests_are_skipped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVERYTHING, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"cannot be made here \(ip is missing\); install iproute2"):
        needed_hosts(("alone",), tmp_path)
