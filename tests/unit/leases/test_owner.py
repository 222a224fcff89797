"""Owners of leases, with real processes: who they are, and whether they have ended."""

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
Child = Callable[[], tuple[subprocess.Popen[str], str]]


@pytest.fixture
def child() -> Iterator[Child]:
    """Starts a process that owns leases, and ends when it gets a line."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], str]:
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


@pytest.fixture
def ended(child: Child) -> str:
    """The owner of a process that has ended."""
    process, owner = child()
    process.kill()
    process.wait()
    return owner


def changed(owner: str, part: int, text: str) -> str:
    parts = owner.split(":")
    return ":".join([*parts[:part], text, *parts[part + 1 :]])


def started_earlier(owner: str) -> str:
    """A process with the same pid that has ended."""
    return changed(owner, 4, str(int(owner.split(":")[4]) - 1))


def test_owner_names_its_process_and_is_unique() -> None:
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


def test_live_process_is_not_gone_even_if_stopped(child: Child) -> None:
    assert not provably_gone(owner_id(Random(1)))
    process, owner = child()
    assert owner.split(":")[3] == str(process.pid)
    assert not provably_gone(owner)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 30)
    assert not provably_gone(owner)
    assert provably_gone(started_earlier(owner)), "another process has its pid"


@pytest.mark.parametrize("part", [0, 1, 2])
def test_process_elsewhere_is_never_provably_gone(ended: str, part: int) -> None:
    assert provably_gone(ended)
    assert not provably_gone(changed(ended, part, "another"))
    assert not provably_gone(changed(ended, part, "-"))


@pytest.mark.parametrize(
    "owner", ["", "kcl-worker-3", "host:4711:00c0ffee", "h:b:n:-1:5:x", "h:b:n:0:5:x", "h:b:n:p:5:x", "a:b:c:d:e:f:g"]
)
def test_owner_of_another_form_is_never_provably_gone(owner: str) -> None:
    assert not provably_gone(owner)
    assert readable(owner) == owner


def test_parent_is_of_another_program_than_its_child(child: Child, tmp_path: Path) -> None:
    _, owner = child()
    assert of_this_program(owner_id(Random(1)))
    assert not of_this_program(owner)
    assert not of_this_program(owner, proc=tmp_path), "its state is unknown"
    assert not of_this_program("kcl-worker-3")


def test_owner_without_proc_is_never_provably_gone(tmp_path: Path) -> None:
    owner = owner_id(Random(1), tmp_path)
    host, boot, namespace, pid, started, _ = owner.split(":")
    assert (boot, namespace, pid, started) == ("-", "-", str(os.getpid()), "-")
    assert readable(owner) == f"{host}:{pid}"
    assert not provably_gone(f"{host}:-:-:999999999:5:x")


@pytest.mark.parametrize(
    ("host", "started", "parent", "ours", "same"),
    [
        (None, "99", "40", 40, True),
        (None, "99", "41", 40, False),
        (None, "98", "40", 40, False),
        # A process whose parent has ended gets process 1 as its parent.
        (None, "99", "1", 1, False),
        ("another", "99", "40", 40, False),
    ],
)
def test_process_with_the_same_parent_is_of_this_program(
    host: str | None, started: str, parent: str, ours: int, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, boot, namespace, *_ = owner_id(Random(1)).split(":")
    monkeypatch.setattr(os, "getppid", lambda: ours)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (python) S {parent} {' '.join(['0'] * 17)} {started} 0")
    assert of_this_program(":".join((host or here, boot, namespace, "7", "99", "x")), tmp_path) is same
