"""A process is told from others by its id and its start."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo import processes
from kinesis_efo.processes import UNKNOWN, Process, read_stat
from tests.support.world import wait_until


def test_a_process_lives_until_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        there = Process.of(process.pid)
        assert there.started != UNKNOWN
        assert there.lives()
        process.kill()
        # Before anybody has waited for it, too.
        wait_until(lambda: not there.lives())
        assert Path(f"/proc/{process.pid}").exists()
    assert not there.lives()


def test_process_that_ends_during_the_check_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        there = Process.of(process.pid)

        def before_it_ends(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any) -> Any:
                result = call(*arguments)
                assert process.stdin is not None
                process.stdin.close()
                process.wait()
                return result

            return called

        monkeypatch.setattr(os, "kill", before_it_ends(os.kill))
        monkeypatch.setattr(processes, "read_stat", before_it_ends(read_stat))
        assert not there.lives()


def test_a_reused_pid_is_another_process() -> None:
    here = Process.of(os.getpid())
    assert here.lives()
    assert not Process(os.getpid(), str(int(here.started) + 1)).lives()


def test_without_proc_only_existence_is_known(tmp_path: Path) -> None:
    here = Process.of(os.getpid(), tmp_path)
    assert here == (os.getpid(), UNKNOWN)
    assert here.lives(tmp_path)
    assert here.lives()
    assert not Process(2**22 + 1, UNKNOWN).lives(tmp_path)


def test_another_users_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    assert Process.of(os.getpid()).lives()


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(map(str, range(5, 60)))
    (tmp_path / "7" / "stat").write_text(f"7 (a ) S 1 (b)) Z 42 {fields}")
    stat = read_stat(7, tmp_path)
    assert stat == ("Z", "42", "22")
    assert stat is not None
    assert stat.dead
    (tmp_path / "7" / "stat").write_text("7 (cut off) S 1")
    assert read_stat(7, tmp_path) is None
