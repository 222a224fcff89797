"""How processes of one Spark program find each other's runs, with real processes and the kernel's locks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.errors import FetcherError
from kinesis_efo.planner import program
from kinesis_efo.planner.program import OwnFile, Program, RunEntry
from kinesis_efo.processes import Process
from tests.support.world import wait_until

ADDRESS = FetcherAddress("here", 4711)
ENTRY = RunEntry(ADDRESS, "secret", {"orders": "arn:orders"})
JVM = Process.of(os.getpid())

HOST = """
import sys
from pathlib import Path
from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.planner.program import Program, RunEntry
from kinesis_efo.processes import Process
program = Program.found(Path(sys.argv[1]), Process(int(sys.argv[2]), sys.argv[3]), sys.argv[4])
with program.deciding(lambda: None):
    if sys.argv[5] == "host":
        file = program.begin(RunEntry(FetcherAddress("here", 1), "s", {"orders": "arn:orders"}))
    else:
        print("deciding", flush=True)
        sys.stdin.readline()
print("there", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts processes of the program: a host, or one that is about to decide."""
    with ExitStack() as stack:

        def start(part: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", HOST, str(tmp_path / "notes"), str(JVM.pid), JVM.started, "lake", part]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == ("there" if part == "host" else "deciding")
            return process

        yield start


def found(directory: Path, about: str = "lake", jvm: Process = JVM) -> Program:
    return Program.found(directory / "notes", jvm, about)


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


def test_a_run_is_found_by_others_of_the_program_while_its_file_is_open(tmp_path: Path) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    (run,) = found(tmp_path).runs()
    assert run.entry == ENTRY
    assert run.lives
    assert path(tmp_path).stat().st_mode & 0o777 == 0o600
    longer = RunEntry(ADDRESS, "secret", {"orders": "arn:orders", "a" * 100: "arn:clicks"})
    for entry in (longer, ENTRY):
        file.write(entry)
        assert run.again() == entry
        assert streams(here) == [entry.streams]
    path(tmp_path).unlink()
    assert run.lives, "it is still there for who has joined it"
    file.close()
    assert not run.lives
    assert run.again() == ENTRY
    run.close()
    run.close()
    assert not run.lives
    assert run.again() == ENTRY
    assert streams(here) == []
    file.write(ENTRY)
    file.close()


@pytest.mark.parametrize("other", ["another lease table", "another JVM", "a JVM with the same id"])
def test_other_programs_do_not_find_it(tmp_path: Path, other: str) -> None:
    file = found(tmp_path).begin(ENTRY)
    match other:
        case "another lease table":
            there = found(tmp_path, "other")
        case "another JVM":
            # In a fork of the process that has collected the tests, its parent is `JVM`.
            pid = os.getppid() if os.getpid() == JVM.pid else os.getpid()
            there = found(tmp_path, jvm=Process.of(pid))
        case _:
            there = found(tmp_path, jvm=Process(JVM.pid, "1"))
    assert streams(there) == []
    assert len(streams(found(tmp_path))) == 1, "it is not swept away either"
    file.close()


def test_the_kernel_tells_that_a_host_was_killed(
    tmp_path: Path, processes: Callable[[str], subprocess.Popen[str]]
) -> None:
    host = processes("host")
    here = found(tmp_path)
    (run,) = here.runs()
    assert run.lives
    host.kill()
    host.wait()
    assert not run.lives
    there = path(tmp_path)
    assert streams(here) == []
    assert not there.exists()
    run.close()


def test_all_runs_of_a_program_have_one_secret(tmp_path: Path) -> None:
    here, there = found(tmp_path), found(tmp_path)
    secret = here.secret("")
    assert len(secret) == 43
    assert there.secret("") == there.secret("another") == secret
    assert found(tmp_path, "other").secret("") != secret
    for each in (tmp_path / "notes").iterdir():
        each.unlink()
    assert here.secret(secret) == there.secret("") == secret, "somebody has cleaned up"


def test_a_paused_host_lives(tmp_path: Path, processes: Callable[[str], subprocess.Popen[str]]) -> None:
    host = processes("host")
    host.send_signal(19)
    (run,) = found(tmp_path).runs()
    assert run.lives
    host.send_signal(18)
    run.close()


def test_two_that_look_at_once_do_not_take_each_other_for_the_host(tmp_path: Path) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    (run,) = here.runs()
    with path(tmp_path).open("r+b") as other:
        file.close()
        program.fcntl.flock(other, program.fcntl.LOCK_SH)
        assert not run.lives
        program.fcntl.flock(other, program.fcntl.LOCK_UN)
        assert not run.lives
        program.fcntl.flock(other, program.fcntl.LOCK_EX | program.fcntl.LOCK_NB), "it has not kept it either"
    run.close()


def test_one_decides_at_a_time_and_who_waits_can_give_up(
    tmp_path: Path, processes: Callable[[str], subprocess.Popen[str]]
) -> None:
    other = processes("decide")
    here, waited = found(tmp_path), []

    def check() -> None:
        waited.append(True)
        if len(waited) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError), here.deciding(check, lambda _: None):
        raise AssertionError("another one decides")
    decided = threading.Event()

    def decide() -> None:
        with here.deciding(lambda: None):
            decided.set()

    thread = threading.Thread(target=decide)
    thread.start()
    assert not decided.wait(0.2)
    assert other.stdin is not None
    other.stdin.write("\n")
    other.stdin.flush()
    assert decided.wait(20)
    thread.join()


def test_who_decides_and_dies_keeps_nobody_waiting(
    tmp_path: Path, processes: Callable[[str], subprocess.Popen[str]]
) -> None:
    processes("decide").kill()
    with found(tmp_path).deciding(lambda: None):
        pass


def test_a_program_without_a_run_leaves_no_file(
    tmp_path: Path, processes: Callable[[str], subprocess.Popen[str]]
) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    here.clear()
    assert locks(tmp_path), "a run that dies leaves its file, and its queries look for the secret"
    file.close()
    deciding = processes("decide")
    here.clear()
    assert locks(tmp_path), "another process decides"
    deciding.kill()
    deciding.wait()
    here.clear()
    assert not locks(tmp_path)


def test_a_lock_that_was_removed_meanwhile_is_none(tmp_path: Path) -> None:
    here = found(tmp_path)
    opened: list[int] = []
    lock_file = here._lock_file

    @contextmanager
    def removed() -> Iterator[int]:
        with lock_file() as file:
            if not opened:
                locks(tmp_path)[0].unlink()
            opened.append(file)
            yield file

    here._lock_file = removed  # type: ignore[method-assign]
    with here.deciding(lambda: None):
        assert len(opened) == 2
        assert locks(tmp_path)


def locks(directory: Path) -> list[Path]:
    return list((directory / "notes").glob("*.lock"))


@pytest.mark.parametrize("what", ["others may write", "a file", "read-only", "no flock"])
def test_a_directory_that_cannot_be_used_is_an_error_with_the_way_out(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "notes"
    match what:
        case "others may write":
            directory.mkdir()
            directory.chmod(0o777)
        case "a file":
            directory.touch()
        case "read-only":
            # Root may write everywhere.
            monkeypatch.setattr(os, "open", _refused)
        case _:
            monkeypatch.setattr(program, "fcntl", None)
    with pytest.raises(FetcherError, match=f"by files in {directory}, with locks; that fails: .* Set TMPDIR"):
        Program.found(directory, JVM, "lake")


def _refused(*_: object, **__: object) -> int:
    raise PermissionError("read-only")


def test_files_of_programs_that_have_ended_are_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        gone = Process.of(process.pid)
        file = found(tmp_path, jvm=gone).begin(ENTRY)
        mine = found(tmp_path).begin(ENTRY)
        foreign = tmp_path / "notes" / f"run.1.{gone.pid}.{gone.started}.0.lock"
        foreign.touch()  # of another container that shares the directory
        (tmp_path / "notes" / f"run.{_namespace()}.{gone.pid}.{gone.started}.directory").mkdir()
        (tmp_path / "notes" / f"run.{_namespace()}.else").touch()
        (tmp_path / "notes" / "0123.json").touch()
        assert len(list((tmp_path / "notes").iterdir())) == 8
        process.communicate()
    wait_until(lambda: not gone.lives())
    found(tmp_path)
    names = [path.name for path in (tmp_path / "notes").iterdir()]
    assert foreign.name in names
    assert "0123.json" in names
    assert len(names) == 6
    left = [name for name in names if name.startswith(f"run.{_namespace()}.{gone.pid}.")]
    assert [name.rpartition(".")[2] for name in left] == ["directory"]
    file.close()
    mine.close()


def _namespace() -> str:
    return Path("/proc/self/ns/pid").readlink().name.removeprefix("pid:[").removesuffix("]")


def test_a_host_keeps_its_file_young(tmp_path: Path) -> None:
    file = found(tmp_path).begin(ENTRY)
    os.utime(path(tmp_path), (1, 1))
    file.touch()
    assert path(tmp_path).stat().st_mtime > 1
    file.close()
    file.touch()


def test_removed_file_of_a_run_is_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    (joined,) = here.runs()
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


def test_a_directory_that_somebody_has_cleaned_up_is_made_again(tmp_path: Path) -> None:
    here = found(tmp_path)
    for each in (tmp_path / "notes").iterdir():
        each.unlink()
    (tmp_path / "notes").rmdir()
    assert streams(here) == []
    file = here.begin(ENTRY)
    assert len(streams(here)) == 1
    file.close()


def test_no_secret_is_left_in_a_directory_that_has_taken_its_place(tmp_path: Path) -> None:
    """It was cleaned up, and another user has made one of its name."""
    here = found(tmp_path)
    (tmp_path / "notes").rename(tmp_path / "cleaned up")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes").chmod(0o777)
    for use in (lambda: here.secret("known"), lambda: here.begin(ENTRY), here.runs):
        with pytest.raises(PermissionError, match="set TMPDIR"):
            use()
    assert list((tmp_path / "notes").iterdir()) == []


def test_a_file_that_cannot_be_read_is_of_nobody(tmp_path: Path) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    path(tmp_path).write_bytes(b"{")
    assert streams(here) == []
    file.close()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{", b'{"x":' + b"[" * 100_000, b"{" + bytes(100), b'"x"', b'{"secret": "\xff"}']
)
def test_odd_content_is_of_no_run(content: bytes, tmp_path: Path) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    (run,) = here.runs()
    path(tmp_path).write_bytes(content)
    assert streams(here) == []
    assert run.again() == ENTRY
    run.close()
    file.close()


def test_huge_file_is_of_no_run(tmp_path: Path) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    os.truncate(path(tmp_path), 1 << 43)  # more than any memory
    assert streams(here) == []
    file.close()


def test_odd_files_are_of_no_run(tmp_path: Path) -> None:
    here = found(tmp_path)
    file = here.begin(ENTRY)
    base = path(tmp_path)
    for name, make in (("a", Path.mkdir), ("b", os.mkfifo), ("c", lambda each: each.symlink_to("/dev/zero"))):
        make(base.with_name(f"{base.name.rsplit('.', 2)[0]}.{name}.json"))
    assert len(streams(here)) == 1
    file.close()


def test_odd_secret_is_refused(tmp_path: Path) -> None:
    here = found(tmp_path)
    (lock,) = (tmp_path / "notes").glob("*.lock")
    lock.write_bytes(b"\xff\x1b[2J")
    with pytest.raises(FetcherError, match=r"\.lock has something else than a secret of this library; remove it"):
        here.secret("")


def test_a_place_that_is_taken_is_no_file_of_ours(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(FileExistsError):
        OwnFile(tmp_path / "taken", ENTRY)


@pytest.mark.parametrize(
    ("other", "overlaps"),
    [
        ({"orders": "arn:orders"}, True),
        ({"orders": "arn:orders", "clicks": "arn:clicks"}, True),
        ({"clicks": "arn:clicks"}, False),
        ({"orders": "arn:aws:kinesis:us-east-1:210987654321:stream/orders"}, False),
    ],
)
def test_runs_overlap_by_what_they_read_and_what_it_is_called(other: dict[str, str], overlaps: bool) -> None:
    assert ENTRY.overlaps(other) is overlaps
