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

from kinesis_efo.leases import owner as owner_module
from kinesis_efo.leases.owner import of_this_program, owner_id, provably_gone, readable
from tests.support.world import wait_until

# The module without its package, which imports the AWS SDK: that would take half a second of CPU in each process.
ALONE = f"import sys; sys.path.append({str(Path(owner_module.__file__).parent)!r}); import owner; "
PROGRAM = ALONE + "from random import Random; print(owner.owner_id(Random(1)), flush=True); input()"
SIBLING = ALONE + "print(owner.of_this_program(sys.argv[1]))"
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


def is_sibling(owner: str) -> bool:
    """What another child of this process says of an owner."""
    said = subprocess.run(
        [sys.executable, "-c", SIBLING, owner], capture_output=True, text=True, check=True, timeout=60
    )
    return {"True": True, "False": False}[said.stdout.strip()]


def test_children_of_one_process_are_of_one_program(child: Callable[[], Child]) -> None:
    _, owner = child()
    assert is_sibling(owner)
    host, boot, namespace, pid, started, token = owner.split(":")
    assert not is_sibling(":".join((host, boot, namespace, pid, str(int(started) - 1), token))), (
        "another process by now"
    )
    assert not is_sibling(":".join(("another", boot, namespace, pid, started, token)))
    assert not is_sibling(owner_id(Random(1))), "the parent is Spark's JVM, no reader"
    assert not is_sibling("kcl-worker-3")


def test_a_process_is_of_its_own_program_and_its_child_is_not(child: Callable[[], Child], tmp_path: Path) -> None:
    assert of_this_program(owner_id(Random(1)))
    _, owner = child()
    assert not of_this_program(owner)
    assert not of_this_program(owner, proc=tmp_path), "nothing is known of it"


def test_processes_that_nobody_has_started_any_more_are_not_of_one_program(tmp_path: Path) -> None:
    """Whose parent has ended gets process 1 as its parent; so does a job that a container begins with."""
    orphan = """
import os, sys, time
from kinesis_efo.leases import owner
me = owner.owner_id.__globals__["_own"](os.getpid())
os.getppid = lambda: 1
(owner.Path(sys.argv[1]) / "7").mkdir()
(owner.Path(sys.argv[1]) / "7" / "stat").write_text("7 (python) S 1 " + " ".join(["0"] * 17) + " 99 0")
print(owner.of_this_program(":".join((me.host, me.boot, me.namespace, "7", "99", "x")), owner.Path(sys.argv[1])))
"""
    said = subprocess.run(
        [sys.executable, "-c", orphan, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == "False"


@pytest.mark.parametrize("refusal", [PermissionError, OverflowError])
def test_a_process_of_somebody_else_is_not_known_to_have_ended(
    child: Callable[[], Child], monkeypatch: pytest.MonkeyPatch, refusal: type[Exception]
) -> None:
    process, owner = child()
    process.kill()
    process.wait()

    def refuse(*_: int) -> None:
        raise refusal

    monkeypatch.setattr(os, "kill", refuse)
    assert provably_gone(owner) is False


def test_without_a_proc_file_system_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "_PROC", tmp_path)
    owner_module._own.cache_clear()
    try:
        host, boot, namespace, pid, started, _ = owner_id(Random(1)).split(":")
        assert (boot, namespace, pid, started) == ("-", "-", str(os.getpid()), "-")
        assert readable(owner_id(Random(1))) == f"{host}:{pid}"
        assert not provably_gone(f"{host}:-:-:999999999:5:x")
    finally:
        owner_module._own.cache_clear()


def test_a_process_whose_state_is_cut_short_is_not_known(child: Callable[[], Child], tmp_path: Path) -> None:
    _, owner = child()
    pid = owner.split(":")[3]
    (tmp_path / pid).mkdir()
    (tmp_path / pid / "stat").write_text(f"{pid} (python) Z 1 " + " ".join(["0"] * 17))
    assert not provably_gone(owner, proc=tmp_path)


@pytest.mark.parametrize(
    ("host", "started", "parent", "ours", "same"),
    [
        (None, "99", "40", 40, True),
        (None, "99", "41", 40, False),
        (None, "98", "40", 40, False),
        (None, "99", "1", 1, False),
        ("another", "99", "40", 40, False),
    ],
)
def test_a_process_with_the_same_parent_is_of_this_program(
    host: str | None, started: str, parent: str, ours: int, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = owner_module._own(os.getpid())
    monkeypatch.setattr(os, "getppid", lambda: ours)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (python) S {parent} {' '.join(['0'] * 17)} {started} 0")
    assert of_this_program(":".join((host or me.host, me.boot, me.namespace, "7", "99", "x")), tmp_path) is same
