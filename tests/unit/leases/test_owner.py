"""Owners of leases, with real processes: who they are, and whether they have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from kinesis_efo.leases.owner import owner_id, provably_gone, readable
from tests.support.world import wait_until

PROGRAM = "from random import Random; from kinesis_efo.leases.owner import owner_id; print(owner_id(Random(1)), flush=True); input()"
Child = tuple[subprocess.Popen[str], str]


@pytest.fixture
def child() -> Iterator[Callable[[], Child]]:
    """Starts a process that owns leases, and ends when it gets a line."""
    started: list[subprocess.Popen[str]] = []

    def start() -> Child:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_an_owner_names_its_process_and_is_never_the_same_twice() -> None:
    first, second = owner_id(Random(1)), owner_id(Random(2))
    assert first != second
    host, boot, namespace, pid, started, token = first.split(":")
    assert host
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert f"pid:[{namespace}]" == os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    assert int(pid) == os.getpid()
    assert started.isdecimal()
    assert len(token) == 16
    assert readable(first) == f"{host}:{os.getpid()}"


def test_a_process_that_lives_is_not_gone_stopped_or_not(child: Callable[[], Child]) -> None:
    assert not provably_gone(owner_id(Random(1)))
    process, owner = child()
    assert owner.split(":")[3] == str(process.pid)
    assert not provably_gone(owner)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 30)
    assert not provably_gone(owner)


def test_a_process_that_ended_is_gone_before_and_after_it_was_waited_for(child: Callable[[], Child]) -> None:
    process, owner = child()
    process.kill()
    wait_until(lambda: provably_gone(owner), 30)
    assert Path(f"/proc/{process.pid}").exists(), "nobody has waited for it"
    process.wait()
    assert provably_gone(owner)


def test_a_process_with_the_same_pid_is_another_one(child: Callable[[], Child]) -> None:
    _, owner = child()
    host, boot, namespace, pid, started, token = owner.split(":")
    assert provably_gone(":".join((host, boot, namespace, pid, str(int(started) - 1), token)))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_of_another_machine_or_container_nothing_is_known(child: Callable[[], Child], part: int) -> None:
    process, owner = child()
    process.kill()
    process.wait()
    parts = owner.split(":")
    assert provably_gone(owner)
    assert not provably_gone(":".join([*parts[:part], "another", *parts[part + 1 :]]))
    assert not provably_gone(":".join([*parts[:part], "-", *parts[part + 1 :]]))


@pytest.mark.parametrize(
    "owner", ["", "kcl-worker-3", "host:4711:00c0ffee", "h:b:n:-1:5:x", "h:b:n:0:5:x", "h:b:n:p:5:x", "a:b:c:d:e:f:g"]
)
def test_of_owners_of_another_form_nothing_is_known(owner: str) -> None:
    assert not provably_gone(owner)
    assert readable(owner) == owner


def test_a_process_that_may_not_be_looked_at_counts_as_alive(child: Callable[[], Child], tmp_path: Path) -> None:
    _, owner = child()
    assert not provably_gone(owner, proc=tmp_path)
