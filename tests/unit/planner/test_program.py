"""How processes of one Spark program find each other's runs, with the locks of the kernel."""

import os
from pathlib import Path

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.planner import program
from kinesis_efo.planner.program import OwnFile, Program, RunEntry, RunFile
from kinesis_efo.processes import Process

ADDRESS = FetcherAddress("here", 4711)
ENTRY = RunEntry(ADDRESS, "secret", {"orders": "arn:orders"})
JVM = Process.of(os.getpid())


def found(directory: Path, about: str = "lake", jvm: Process = JVM) -> Program:
    return Program.locate(directory / "notes", jvm, about)


def hosted(directory: Path) -> tuple[Program, OwnFile, RunFile]:
    """A program, the file of its run, and the run as it is found."""
    here = found(directory)
    file = here.begin(ENTRY)
    (run,) = here.runs()
    return here, file, run


def path(directory: Path) -> Path:
    (found,) = (directory / "notes").glob("*.json")
    return found


def never() -> None:
    raise AssertionError("nobody else decides")


def streams(of: Program) -> list[dict[str, str]]:
    with of.deciding(never):
        runs = of.runs()
    for run in runs:
        run.close()
    return [run.entry.streams for run in runs]


def test_concurrent_searches_find_no_false_host(tmp_path: Path) -> None:
    _, file, run = hosted(tmp_path)
    with path(tmp_path).open("r+b") as other:
        file.close()
        program.fcntl.flock(other, program.fcntl.LOCK_SH)
        assert not run.lives
        program.fcntl.flock(other, program.fcntl.LOCK_UN)
        assert not run.lives
        program.fcntl.flock(other, program.fcntl.LOCK_EX | program.fcntl.LOCK_NB), "it has not kept it either"
    run.close()


def test_removed_file_of_a_run_is_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here, file, joined = hosted(tmp_path)
    file.restore()
    assert caplog.messages == []
    there = path(tmp_path)
    for each in (tmp_path / "notes").iterdir():
        each.unlink()
    (tmp_path / "notes").rmdir()
    file.restore()
    assert f"{there} was removed; writing it again" in caplog.text
    assert streams(here) == [ENTRY.streams]
    assert joined.lives
    file.write(RunEntry(ADDRESS, "secret", {"clicks": "arn:clicks"}))
    assert streams(here) == [joined.again().streams] == [{"clicks": "arn:clicks"}]
    file.close()
    assert not joined.lives
    file.restore()
    assert streams(here) == []
    joined.close()


def test_files_of_pids_that_cannot_exist_are_removed(tmp_path: Path) -> None:
    file = found(tmp_path).begin(ENTRY)
    here = path(tmp_path)
    left = here.with_name(here.name.replace(f".{JVM.pid}.", f".{2**64}."))
    left.touch()
    found(tmp_path)
    assert (here.exists(), left.exists()) == (True, False)
    file.close()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{", b'{"x":' + b"[" * 100_000, b"{" + bytes(100), b'"x"', b'{"secret": "\xff"}']
)
def test_odd_content_is_of_no_run(content: bytes, tmp_path: Path) -> None:
    here, file, run = hosted(tmp_path)
    path(tmp_path).write_bytes(content)
    assert streams(here) == []
    assert run.again() == ENTRY
    run.close()
    file.close()
