"""Queries of one Spark program share one run, which has a process of its own: whoever is killed or ends, every query reads on.

The test plays Spark's part: it is the parent of all readers' processes, as the driver's JVM is.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4
from zipfile import ZipFile

import psutil
import pytest

import kinesis_efo
from kinesis_efo.processes import notes_directory
from tests.support import arriving
from tests.support.driven import MARK, Driver, local_driver, processes, with_word
from tests.support.played_spark import PlayedSpark, ReaderFailed
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]
Play = Callable[..., PlayedSpark]


class Reading:
    """One query: it reads on from where it is."""

    def __init__(self, play: Play, world: World, **options: str) -> None:
        self.spark = play(world, leaseTimeout="600s", **options)
        self.at, self.rows = self.spark.step(self.spark.initial_offset())

    def until(self, rows: list[bytes], *, sort: bool = False) -> None:
        """Read until these rows have come, each once and in order; of several streams, in any order."""

        def read() -> bool:
            if len(self.rows) < len(rows):
                self.at, found = self.spark.step(self.at)
                self.rows += found
            return len(self.rows) >= len(rows)

        wait_until(read, what=f"{len(rows)} rows")
        assert (sorted(self.rows) if sort else self.rows) == (sorted(rows) if sort else rows)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def put(world: World, rows: list[bytes], stream: str = "orders") -> list[bytes]:
    world.put([("k", row) for row in rows], stream)
    return rows


def owners(world: World) -> set[str]:
    return {row["leaseOwner"]["S"] for row in world.leases().values() if "leaseOwner" in row}


def epoch(world: World, stream: str = "orders") -> int:
    return int(world.leases()[f"#run:{stream}"]["epoch"]["N"])


def files() -> list[Path]:
    return list(notes_directory().glob(f"run.*.{os.getpid()}.*.json"))


@pytest.fixture(autouse=True)
def programs_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program leaves no process of a run."""
    # Its processes are told by it from those of tests beside this one.
    monkeypatch.setenv(MARK, uuid4().hex)
    yield
    wait_until(lambda: not runs(), 10, "the end of the run")
    # Of a run that was killed, the file is there until somebody looks for one like it.
    for file in files():
        file.unlink()


def runs() -> list[psutil.Process]:
    """The processes of runs that this program has started."""
    return with_word(processes(os.environ[MARK]), "kinesis_efo.planner.run_process")


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """A Spark program of its own."""
    driver = local_driver(tmp_path / "driver.log")
    yield driver
    assert driver.process.stdin is not None
    driver.process.stdin.close()
    driver.kill()


@pytest.mark.spark40
@pytest.mark.slow
def test_real_queries_share_a_run_until_spark_dies(world: MakeWorld, driver: Driver, tmp_path: Path) -> None:
    w = world({"orders": 2})
    before = w.aws.kinesis.calls("SubscribeToShard")
    w.put(arriving.numbered(40))
    one = driver.start("one", w, tmp_path / "one", plain=True)
    one.wait_for_rows(40)
    host = w.reader()
    assert "TOKEN" not in " ".join(host.cmdline()).upper()
    two = driver.start("two", w, tmp_path / "two")
    two.wait_for_rows(40)
    assert w.aws.kinesis.calls("SubscribeToShard") == before + 2, "one for each shard"
    one.stop()
    w.put(arriving.numbered(40, first=40))
    assert sorted(row.number for row in two.wait_for_rows(80)) == list(range(80))
    assert host.is_running()
    assert epoch(w) == 1
    again = driver.start("again", w, tmp_path / "one", plain=True)
    assert sorted(row.number for row in again.wait_for_rows(80)) == list(range(80))
    assert epoch(w) == 1
    # The program dies: nothing is left that reads or holds a lease.
    (jvm,) = [child for child in psutil.Process(driver.process.pid).children() if child.name() == "java"]
    readers = jvm.children(recursive=True)
    readers.append(host)
    jvm.kill()
    _, alive = psutil.wait_procs(readers, 20)
    assert not alive
    assert not owners(w)


# Shows run killed.
@pytest.mark.spark40
@pytest.mark.slow
def test_tasks_replace_a_run_killed_under_them(world: MakeWorld, play: Play) -> None:
    """Tasks that read at that moment ask where to go on."""
    w = world()
    rows = put(w, numbered(0, 20))
    query = Reading(play, w)
    query.until(rows)
    rows += put(w, numbered(20, 20))
    end = wait_until(lambda: (found := query.spark.latest_offset(query.at)) != query.at and found, 60)
    query.spark.plan(query.at, end)
    (run,) = runs()
    run.kill()
    read = query.spark.rows()
    assert set(read) <= set(rows)
    assert read
    assert runs() != [run]
    query.spark.close()


# Shows process group signaled.
@pytest.mark.spark43
@pytest.mark.slow
def test_signals_to_the_process_group_leave_the_run(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 10))
    query = Reading(play, w)
    query.until(rows)
    (run,) = runs()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        run.send_signal(number)
        query.until(rows := rows + put(w, numbered(len(rows), 10)))
    assert runs() == [run]
    query.spark.close()
    assert query.spark.process.returncode not in (None, -signal.SIGKILL)
    assert not owners(w), "who asks the last query to end finds its leases free"
    assert not files()


@pytest.mark.long
@pytest.mark.spark40
def test_a_run_dying_repeatedly_fails_its_query(world: MakeWorld, play: Play) -> None:
    w = world()
    query = Reading(play, w)
    query.until(put(w, numbered(0, 10)))
    killed: list[str] = []

    def die() -> None:
        # One that is just starting has no file yet.
        if (begun := [file.name for file in files() if file.name not in killed]) and (living := runs()):
            killed.extend(begun)
            living[-1].kill()
        query.spark.latest_offset(query.at)

    with pytest.raises(ReaderFailed, match="has died 4 times within half an hour") as failed:
        wait_until(die, 120)
    assert "signal SIGKILL, with a peak memory of" in str(failed.value)
    assert len(killed) == 4
    query.spark.close()


@pytest.mark.spark40
@pytest.mark.slow
def test_a_run_uses_its_programs_zipped_library(
    world: MakeWorld, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--py-files` brings it: zipped, from a directory that is not this one, and with a home that nobody may write to."""
    package = Path(kinesis_efo.__file__).parent
    archive = tmp_path / "files" / "library.zip"
    archive.parent.mkdir()
    with ZipFile(archive, "w") as zipped:
        for file in package.rglob("*.py"):
            source = file.read_text()
            if file.name == "run_process.py":
                source += "\nsys.stderr.write(f'from {__file__}\\n')\n"
            zipped.writestr(str(file.relative_to(package.parent)), source)
    (tmp_path / "home").mkdir(mode=0o500)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", archive.name)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(archive.parent)
    w = world()
    query = Reading(play, w)
    query.until(put(w, numbered(0, 10)))
    query.spark.stream.close()
    query.spark.connection.close()
    _, said = query.spark.process.communicate(timeout=60)
    assert said.count(b"library.zip/kinesis_efo/planner/run_process.py") == 2, "the planner's, and the run's"
