"""Queries of one Spark program share one run, whoever of them begins and ends first.

The test plays Spark's part: it is the parent of all readers' processes, as the driver's JVM is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kinesis_efo.leases import Lease
from kinesis_efo.operate.live import ask
from kinesis_efo.private_directory import notes_directory
from tests.support import arriving
from tests.support.driven import Driver
from tests.support.played_spark import CREDENTIALS, FEW_CERTIFICATES, PlayedSpark, ReaderFailed
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]
Play = Callable[..., PlayedSpark]


class Reading:
    """One query: it reads on from where it is."""

    def __init__(self, play: Play, world: World, **options: str) -> None:
        self.spark = play(world, leaseTimeout="600s", **options)
        self.at = self.spark.initial_offset()
        self.rows: list[bytes] = []

    def until(self, rows: list[bytes], *, sort: bool = False) -> None:
        """Read until these rows have come, each once and in order; of several streams, in any order."""

        def read() -> bool:
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


@pytest.mark.spark
@pytest.mark.slow
def test_two_queries_share_one_run(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    before = w.aws.kinesis.calls("SubscribeToShard")
    first = Reading(play, w)
    first.until(rows)
    second = Reading(play, w)
    rows += put(w, numbered(20, 20))
    second.until(rows)
    first.until(rows)
    assert epoch(w) == 1
    assert len(files()) == 1
    assert w.aws.kinesis.calls("SubscribeToShard") == before + 1
    second.spark.close()
    assert second.spark.process.returncode not in (None, -signal.SIGKILL)
    rows += put(w, numbered(40, 5))
    first.until(rows)
    first.spark.close()
    assert not owners(w)
    assert not files()


@pytest.mark.spark
@pytest.mark.slow
def test_tools_are_told_of_each_query_by_its_checkpoint(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    queries = [Reading(play, w), Reading(play, w)]
    for query in queries:
        query.until(rows)
    queries[1].spark.latest_offset(queries[1].at)
    run = Lease.from_item(w.leases()["#run:orders"])
    assert run is not None
    (status,) = asyncio.run(ask({"orders": run})).answers.values()
    marks = [query.at["mark"].partition(":")[0] for query in queries]
    told = [(each.number, each.streams, each.checkpoint) for each in status.queries]
    assert told == [(1, ["orders"], marks[0]), (2, ["orders"], marks[1])]
    # The last micro-batch of the first one is not committed.
    done = [each.records_done for each in status.queries]
    assert done[0] < done[1] == 20
    assert [each.query for each in status.shards] == [1]


@pytest.mark.spark
@pytest.mark.slow
def test_a_host_whose_query_stops_stays_for_its_guests(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first = Reading(play, w)
    first.until(rows)
    second = Reading(play, w)
    second.until(rows)
    first.spark.hang_up()
    rows += put(w, numbered(20, 20))
    second.until(rows)
    assert first.spark.process.poll() is None
    third = Reading(play, w)
    third.until(rows)
    second.spark.close()
    assert epoch(w) == 1
    assert first.spark.process.poll() is None
    third.spark.close()
    first.spark.process.wait(20)
    assert not owners(w)
    assert not files()


@pytest.mark.spark
@pytest.mark.slow
def test_a_guest_goes_on_if_its_host_is_killed(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first = Reading(play, w)
    first.until(rows)
    second = Reading(play, w)
    end: Any = wait_until(
        lambda: (found := second.spark.latest_offset(second.at)) != second.at and found, what="an offset with data"
    )
    second.spark.plan(second.at, end)
    first.spark.process.kill()
    # Its tasks were told to read from a process that is gone.
    second.rows, second.at = second.spark.rows(), end
    rows += put(w, numbered(20, 20))
    second.until(rows)
    assert epoch(w) == 2
    third = Reading(play, w)
    third.until(rows)
    third.spark.close()
    second.spark.close()
    assert not owners(w)
    assert not files()


@pytest.mark.spark40
@pytest.mark.slow
def test_a_guest_that_reads_more_streams_extends_the_run(world: MakeWorld, play: Play) -> None:
    w = world({"orders": 1, "clicks": 1})
    rows, clicks = put(w, numbered(0, 10)), put(w, numbered(50, 10), "clicks")
    first = Reading(play, w, streams="orders")
    first.until(rows)
    second = Reading(play, w)
    second.until([*rows, *clicks], sort=True)
    assert {key for key, row in w.leases().items() if "leaseOwner" in row} == {"#run:orders", "#run:clicks"}
    assert len(owners(w)) == 1
    # Whoever goes on reads both: neither is left to a run of its own.
    third = Reading(play, w, streams="clicks")
    third.until(clicks)
    first.spark.process.kill()
    rows += put(w, numbered(20, 10))
    clicks += put(w, numbered(80, 10), "clicks")
    second.until([*rows, *clicks], sort=True)
    third.until(clicks)
    assert len(owners(w)) == 1
    assert (epoch(w), epoch(w, "clicks")) == (2, 2)
    assert len(files()) == 1


@pytest.mark.spark40
@pytest.mark.slow
def test_a_host_that_fails_by_its_own_fault_says_so_at_once_and_hands_over(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first = Reading(play, w)
    first.until(rows)
    second = Reading(play, w)
    second.until(rows)
    with pytest.raises(ReaderFailed, match="not a kinesis-efo offset"):
        first.spark.plan(first.at, {"version": 1, "streams": "nonsense"})
    first.spark.process.wait(20)
    rows += put(w, numbered(20, 20))
    second.until(rows)
    assert epoch(w) == 2


@pytest.mark.spark40
@pytest.mark.slow
def test_a_guest_waits_for_a_host_that_is_paused(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first = Reading(play, w)
    first.until(rows)
    second = Reading(play, w)
    second.until(rows)
    first.spark.process.send_signal(signal.SIGSTOP)
    threading.Timer(3, first.spark.process.send_signal, [signal.SIGCONT]).start()
    rows += put(w, numbered(20, 20))
    second.until(rows)
    first.until(rows)
    assert epoch(w) == 1


@pytest.mark.spark40
@pytest.mark.slow
def test_without_a_private_directory_the_second_source_is_refused_and_told_why(
    world: MakeWorld, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = world()
    put(w, numbered(0, 20))
    everybodys = tmp_path / notes_directory().name
    everybodys.mkdir()
    everybodys.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    first, second = (play(w, leaseTimeout="2s") for _ in range(2))
    start = first.initial_offset()
    wait_until(lambda: first.latest_offset(start) != start, what="an offset with data")
    with pytest.raises(ReaderFailed) as raised:
        wait_until(lambda: second.latest_offset(second.initial_offset()) != start)
    assert "is already read by this Spark program itself" in str(raised.value)
    assert "Write to several tables from one query" in str(raised.value)
    assert not list(everybodys.iterdir())


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """A Spark program of its own."""
    log = tmp_path / "driver.log"
    config = {"master": "local[4]", "conf": {"spark.ui.enabled": "false"}}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[2] / "cluster" / "driver.py"), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **CREDENTIALS, **FEW_CERTIFICATES, "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
    driver = Driver(process, log)
    yield driver
    assert process.stdin is not None
    process.stdin.close()
    driver.kill()


@pytest.mark.spark40
@pytest.mark.slow
def test_real_queries_share_a_run_as_long_as_one_is_there(world: MakeWorld, driver: Driver, tmp_path: Path) -> None:
    w = world({"orders": 2})
    w.put(arriving.numbered(40))
    one = driver.start("one", w, tmp_path / "one", plain=True)
    one.wait_for_rows(40)
    host = w.reader()
    two = driver.start("two", w, tmp_path / "two")
    two.wait_for_rows(40)
    one.stop()
    w.put(arriving.numbered(40, first=40))
    assert sorted(row.number for row in two.wait_for_rows(80)) == list(range(80))
    assert host.is_running()
    assert epoch(w) == 1
    again = driver.start("again", w, tmp_path / "one", plain=True)
    assert sorted(row.number for row in again.wait_for_rows(80)) == list(range(80))
    assert epoch(w) == 1
    # The program dies: nobody is left who reads or holds a lease, not even the one that Spark did not need any more.
    (jvm,) = [child for child in psutil.Process(driver.process.pid).children() if child.name() == "java"]
    readers = jvm.children(recursive=True)
    assert host in readers
    jvm.kill()
    _, alive = psutil.wait_procs(readers, 20)
    assert not alive
    assert not owners(w)
    assert "this query has ended; its process stays for others" in driver.log.read_text()


@pytest.mark.spark40
@pytest.mark.slow
def test_queries_with_fetchers_elsewhere_share_them(world: MakeWorld, driver: Driver, tmp_path: Path) -> None:
    w = world({"orders": 2, "clicks": 1})
    w.put(arriving.numbered(40))
    w.put(arriving.numbered(20, first=100), "clicks")
    one = driver.start("one", w, tmp_path / "one", options={"fetchers": "1", "streams": "orders"})
    one.wait_for_rows(40)
    host = w.reader()
    # It brings a stream that the fetcher has not read so far.
    two = driver.start("two", w, tmp_path / "two", options={"fetchers": "1", "streams": "orders,clicks"})
    two.wait_for_rows(60)
    assert (epoch(w), epoch(w, "clicks")) == (1, 1)
    host.kill()
    w.put(arriving.numbered(40, first=40))
    w.put(arriving.numbered(20, first=120), "clicks")
    assert sorted(row.number for row in two.wait_for_rows(120)) == [*range(80), *range(100, 140)]
    assert (epoch(w), epoch(w, "clicks")) == (2, 2)
    two.stop()
    wait_until(lambda: not owners(w), what="released leases")


@pytest.mark.spark43
@pytest.mark.slow
def test_a_guest_that_reads_what_is_there_ends(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first = Reading(play, w)
    first.until(rows)
    subscribed = w.aws.kinesis.calls("SubscribeToShard")
    second = Reading(play, w)
    second.spark.available_now()
    second.until(rows)
    every = [*rows]

    def leaves_what_came_later() -> bool:
        # It learns the tip some seconds after it has begun, and may read what has come until then.
        every.extend(put(w, numbered(len(every), 20)))
        first.until(every)
        second.at, found = second.spark.step(second.at)
        second.rows += found
        return not found

    wait_until(leaves_what_came_later, what="its end", every=0.5)
    assert second.rows == every[: len(second.rows)]
    assert leaves_what_came_later(), "it has come to its end"
    assert w.aws.kinesis.calls("SubscribeToShard") == subscribed, "asking for the tip ends nobody's subscription"
