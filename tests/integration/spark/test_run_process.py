"""A run in a process of its own, as Spark's processes start it: whoever is killed, every query reads on, and nothing is left behind.

Spark's side is played, so that each of its processes can be ended as a test needs it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from uuid import uuid4

import psutil
import pytest

from kinesis_efo.spark.lifecycle import RUN_PROCESS
from tests.integration.spark.test_sharing import Reading, epoch, files, numbered, owners, put
from tests.support.played_spark import PlayedSpark, ReaderFailed
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MakeWorld = Callable[..., World]
Play = Callable[..., PlayedSpark]


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Its processes are told by it from those of tests beside this one.
    monkeypatch.setenv(RUN_PROCESS, uuid4().hex)
    yield
    wait_until(lambda: not runs(), 10, "the end of the run")
    # Of a run that was killed, the file is there until somebody looks for one like it.
    for file in files():
        file.unlink()


def runs() -> list[psutil.Process]:
    """The processes of runs that this program has started."""
    ours = os.environ[RUN_PROCESS]
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ", "status"])
        if "kinesis_efo.spark.run_process" in " ".join(process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get(RUN_PROCESS) == ours
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def test_two_queries_share_a_process_that_neither_of_them_is(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first, second = Reading(play, w), Reading(play, w)
    first.until(rows)
    second.until(rows)
    (run,) = runs()
    assert run.pid not in (first.spark.process.pid, second.spark.process.pid)
    assert "TOKEN" not in " ".join(run.cmdline()).upper()
    first.spark.close()
    second.until(rows := rows + put(w, numbered(20, 20)))
    assert runs() == [run]
    second.spark.close()
    assert not owners(w), "who asks the last query to end finds its leases free"
    assert not files()
    wait_until(lambda: not runs(), 10)


def test_the_end_of_the_process_that_spark_keeps_for_the_first_query_is_not_seen_by_the_other(
    world: MakeWorld, play: Play
) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first, second = Reading(play, w), Reading(play, w)
    first.until(rows)
    second.until(rows)
    calls = w.aws.kinesis.calls("SubscribeToShard")
    first.spark.process.send_signal(signal.SIGKILL)
    second.until(rows := rows + put(w, numbered(20, 20)))
    assert epoch(w) == 1
    assert w.aws.kinesis.calls("SubscribeToShard") == calls, "nothing is subscribed to anew"
    # Its query is counted out: checkpoints do not wait for it.
    second.spark.close()
    wait_until(lambda: not runs(), 10)


def test_a_run_that_is_killed_is_followed_by_another_one_for_all_queries(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    queries = [Reading(play, w), Reading(play, w)]
    for query in queries:
        query.until(rows)
    (run,) = runs()
    run.kill()
    rows += put(w, numbered(20, 20))
    for query in queries:
        query.until(rows)
    assert epoch(w) == 2
    (next_one,) = runs()
    assert next_one != run
    for query in queries:
        query.spark.close()


def test_a_run_that_is_killed_while_spark_asks_for_nothing_is_followed_at_once(world: MakeWorld, play: Play) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_is_not_ended_by_signals_to_the_whole_process_group(
    number: signal.Signals, world: MakeWorld, play: Play
) -> None:
    w = world()
    rows = put(w, numbered(0, 10))
    query = Reading(play, w)
    query.until(rows)
    (run,) = runs()
    run.send_signal(number)
    query.until(rows + put(w, numbered(10, 10)))
    assert runs() == [run]
    query.spark.close()


def test_what_keeps_a_run_from_beginning_is_the_querys_error(world: MakeWorld, play: Play) -> None:
    w = world()
    w.dynamodb.delete_table(TableName=w.lease_table)
    spark = play(w)
    with pytest.raises(ReaderFailed, match="LeaseTableError"):
        spark.initial_offset()
    spark.close()
    wait_until(lambda: not runs(), 10)


def test_what_a_run_logs_is_in_the_drivers_log(world: MakeWorld, play: Play) -> None:
    w = world()
    query = Reading(play, w)
    query.until(put(w, numbered(0, 10)))
    query.spark.stream.close()
    query.spark.connection.close()
    _, said = query.spark.process.communicate(timeout=60)
    assert b"tasks reach the fetcher at" in said


def test_a_run_that_dies_again_and_again_ends_its_query_with_the_signal(world: MakeWorld, play: Play) -> None:
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

    with pytest.raises(ReaderFailed, match="has died 4 times in a row") as failed:
        wait_until(die, 120)
    assert "signal SIGKILL, its largest memory" in str(failed.value)
    assert len(killed) == 4
    query.spark.close()
