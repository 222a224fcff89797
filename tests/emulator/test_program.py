"""Spark programs in virtual time: what one query, or the run, does to others. Random scenarios are in `tests/chaos/test_seeds_program.py`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from kinesis_efo.options import SourceOptions
from kinesis_efo.planner.shared_run import SharedRun
from kinesis_efo.run.access import Next
from tests.emulator.faults import ScriptedFaults
from tests.emulator.machine import BEGAN, Machine
from tests.emulator.program import Job, ProgramWorld, SparkProgram, in_virtual_time
from tests.emulator.script import Fault


@contextmanager
def program(directory: Path, *script: Fault, shards: int = 1, **settings: Any) -> Iterator[SparkProgram]:
    """A program on a stream."""
    machine = Machine()
    with in_virtual_time(machine):
        faults = ScriptedFaults(script, lambda: machine.now)
        yield SparkProgram(ProgramWorld(machine, directory, Random(1), shards, faults, settings), "program", "here")


def job(program: SparkProgram, name: str, start: str) -> Job:
    """Start a query."""
    options = {"leaseTimeout": "10s", "slowQueries": "apart", "startingPosition": start}
    found = Job(program.world, name, Random(name), **options)
    found.running = program.start(found)
    return found


def reading(program: SparkProgram) -> Job:
    """Start a query that reads, and let it read."""
    found = job(program, "first", "TRIM_HORIZON")
    put(program, 10)
    program.world.machine.sleep(30)
    assert found.has_all
    return found


def stop(program: SparkProgram, query: Job) -> None:
    """Stop a query, and wait until it has ended."""
    query.stopping = True
    while query.running is not None and query.running.lives:
        program.world.machine.sleep(1.0)


def reshard(program: SparkProgram, shard: str, other: str = "") -> None:
    """Split a shard, or merge it with another one."""
    kinesis, stream = program.world.kinesis, "dev-orders"
    first, second = (f"shardId-{each:0>12}" for each in (shard, other))
    if other:
        kinesis.call("MergeShards", StreamName=stream, ShardToMerge=first, AdjacentShardToMerge=second)
    else:
        kinesis.call("SplitShard", StreamName=stream, ShardToSplit=first, NewStartingHashKey=str(1 << 127))


def put(program: SparkProgram, count: int) -> None:
    for _ in range(count):
        program.world.put("key", 10)


def test_query_at_latest_begins_at_its_own_time(tmp_path: Path) -> None:
    with program(tmp_path, Fault("slow opening", 0, seconds=20)) as spark:
        machine = spark.world.machine
        began = machine.now
        put(spark, 60)
        machine.sleep(60)
        first = job(spark, "first", f"AT_TIMESTAMP:{round((BEGAN + began) * 1000)}")
        machine.sleep(5)
        # No event has arrived yet: the shared buffer stands at the time of the first.
        second, third = job(spark, "second", "LATEST"), job(spark, "third", "LATEST")
        machine.sleep(5)
        put(spark, 7)
        machine.sleep(60)
        put(spark, 8)
        machine.sleep(60)
        assert not [error for each in (first, second, third) for error in each.errors]
        assert len(first.rows) == 75
        assert len(second.rows) == len(third.rows) == 15


def test_query_at_latest_begins_at_the_tip_despite_holds(tmp_path: Path) -> None:
    faults = Fault("reset", 1030), Fault("refuse", 1030, times=40, code="KMSDisabledException")
    with program(tmp_path, *faults) as spark:
        machine = spark.world.machine
        first = job(spark, "first", "LATEST")
        machine.sleep(40)
        put(spark, 60)
        machine.sleep(100)
        second = job(spark, "second", "LATEST")
        machine.sleep(10)
        put(spark, 7)
        machine.sleep(400)
        assert not [error for each in (first, second) for error in each.errors]
        assert len(first.rows) == 67
        assert len(second.rows) == 7


def test_queries_at_latest_begin_at_the_same_time(tmp_path: Path) -> None:
    with program(tmp_path, Fault("slow opening", 0, seconds=20)) as spark:
        machine = spark.world.machine
        machine.sleep(10)
        first = job(spark, "first", "LATEST")
        machine.sleep(3)
        put(spark, 7)
        machine.sleep(3)
        second = job(spark, "second", "LATEST")
        machine.sleep(60)
        assert len(first.rows) == len(second.rows) == 7


def test_query_at_latest_requires_several_events_without_lag(tmp_path: Path) -> None:
    quiet = {"wrong_answers": "quiet", "wrong_answers_rate": 1.0, "idle_event_seconds": 20.0}
    with program(tmp_path, **quiet) as spark:
        machine = spark.world.machine
        put(spark, 60)
        machine.sleep(600)
        first = job(spark, "first", "TRIM_HORIZON")
        machine.sleep(10)
        second = job(spark, "second", "LATEST")
        machine.sleep(5)
        put(spark, 7)
        machine.sleep(200)
        assert not [error for each in (first, second) for error in each.errors]
        assert len(first.rows) == 67
        assert len(second.rows) == 7


def test_query_restarts_before_another_has_noticed_the_failure(tmp_path: Path) -> None:
    refused = (
        Fault("reset", 1075, consumer="lake"),
        Fault("refuse", 1075, consumer="lake", code="AccessDeniedException"),
    )
    with program(tmp_path, *refused) as spark:
        machine = spark.world.machine
        first, slow = reading(spark), job(spark, "slow", "TRIM_HORIZON")
        slow.pause = 1200.0
        machine.sleep(30)
        put(spark, 10)
        machine.sleep(60)
        assert [type(error).__name__ for error in first.errors] == ["AccessRefusedError"]
        assert not slow.errors
        first.running = spark.start(first)
        machine.sleep(60)
        assert len(first.errors) == 1
        first.check(whole=True)
        machine.sleep(1300)
        assert [type(error).__name__ for error in slow.errors] == ["AccessRefusedError"]
        slow.pause, slow.running = 0.0, spark.start(slow)
        machine.sleep(60)
        slow.check(whole=True)


class EndingJob(Job):
    """A query with `Trigger.AvailableNow`, or `Trigger.Once` if `once`; `asked` counts its calls for a micro-batch."""

    asked = 0
    once = False

    def run(self, shared: SharedRun) -> None:
        ask = shared.ask

        def counted(call: Any) -> Any:
            if isinstance(call, Next):
                self.asked += 1
                call = replace(call, available_now=not self.once, once=self.once)
            step = ask(call)
            if isinstance(call, Next):
                self.stopping = (self.once or step.end is None) and not step.again
            return step

        shared.ask = counted  # type: ignore[method-assign]
        super().run(shared)


def test_query_that_waits_for_its_end_asks_seldom(tmp_path: Path) -> None:
    with program(tmp_path, Fault("stall", 1000, shard=1, consumer="lake", seconds=100), shards=2) as spark:
        machine, world = spark.world.machine, spark.world
        for number in range(40):
            world.put(f"key{number}", 10)
        query = EndingJob(world, "ends", Random(1), leaseTimeout="10s", startingPosition="TRIM_HORIZON")
        query.running = spark.start(query)
        machine.sleep(10)
        assert 0 < len(query.rows) < 40, "one shard is read up to its end, the other one is not"
        query.asked = 0
        for number in range(60):
            world.put(f"key{number % 40}", 10)
            machine.sleep(1.0)
        assert query.asked <= 60 * 6
        machine.sleep(120)
        assert query.running is None
        assert not query.errors
        assert len(query.rows) == 40


def test_ending_query_gets_room_from_a_slow_one(tmp_path: Path) -> None:
    held_up = Fault("stall", 1000, shard=3, consumer="lake", seconds=100)
    with program(tmp_path, held_up, shards=4, read_limit=False) as spark:
        machine, world = spark.world.machine, spark.world
        for number in range(40):
            world.put(f"key{number}", 20_000)
        options = {"leaseTimeout": "10s", "startingPosition": "TRIM_HORIZON", "bufferBytes": "1m"}
        slow, ends = Job(world, "slow", Random(1), **options), EndingJob(world, "ends", Random(2), **options)
        slow.pause = 600.0
        for each in (slow, ends):
            each.running = spark.start(each)
        machine.sleep(20)
        assert 0 < len(slow.rows) < 40
        assert 0 < len(ends.rows) < 40
        for number in range(400):
            world.put(f"key{number % 40}", 20_000)
        machine.sleep(300)
        assert len(ends.rows) == 40
        assert ends.running is None
        assert not ends.errors


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("once", [True, False])
def test_ending_query_reports_trimmed_shards_and_reads_descendants(once: bool, fails: bool, tmp_path: Path) -> None:
    with program(tmp_path) as spark:
        machine, world = spark.world.machine, spark.world
        options = {"leaseTimeout": "10s", "startingPosition": "TRIM_HORIZON", "failOnDataLoss": str(fails).lower()}
        query = EndingJob(world, "ends", Random(1), **options)
        query.once = once
        put(spark, 10)
        query.running = spark.start(query)
        machine.sleep(60)
        assert len(query.rows) == 10
        assert query.running is None
        put(spark, 5)
        for shard, other in (("0", ""), ("1", "2")):
            machine.sleep(60)
            reshard(spark, shard, other)
        machine.sleep(26 * HOUR)
        put(spark, 5)
        machine.sleep(10)
        end = query.log[-1][1]
        query.log.append((end, end))  # the last micro-batch is committed, and is not repeated
        query.stopping, query.running = False, spark.start(query)
        machine.sleep(200)
        assert query.running is None
        assert [type(error).__name__ for error in query.errors] == ["DataLossError"] * fails
        assert len(query.rows) == (10 if fails else 15)


HOUR = 3600.0
SILENT = "the process that fetches orders (pid 102) has not answered for"


def test_run_that_is_frozen_fails_its_query_after_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with program(tmp_path) as spark:
        machine = spark.world.machine
        query = reading(spark)
        assert spark.host is not None
        spark.host.frozen = True
        machine.sleep(13)
        assert caplog.text.count(f"{SILENT} 10 s") == 1
        machine.sleep(600)
        assert not query.errors
        machine.sleep(20)
        (error,) = query.errors
        assert SILENT in str(error)
        # If it goes on after that, the query does, too, with this run or the next.
        spark.host.frozen = False
        put(spark, 10)
        query.running = spark.start(query)
        machine.sleep(60)
        query.check(whole=True)
        assert len(query.errors) == 1


def test_query_that_would_join_a_frozen_run_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with program(tmp_path) as spark:
        machine = spark.world.machine
        reading(spark)
        assert spark.host is not None
        spark.host.frozen = True
        machine.sleep(300)
        caplog.clear()
        second, third = job(spark, "second", "LATEST"), job(spark, "third", "LATEST")
        machine.sleep(15)
        assert f"{SILENT} 10 s" in caplog.text
        assert (
            "another source of this Spark program has been starting or ending the run of orders for 10 s" in caplog.text
        )
        machine.sleep(700)
        assert len(second.errors) == len(third.errors) == 1


@pytest.mark.parametrize("seconds", [8.0, HOUR])
def test_machine_that_was_suspended_is_no_silent_run(
    seconds: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with program(tmp_path) as spark:
        machine = spark.world.machine
        query = reading(spark)
        for _ in range(20):
            for process in spark.processes:
                process.frozen = True
            machine.sleep(seconds)
            for process in spark.processes:
                process.frozen = False
            machine.sleep(30)
            put(spark, 1)
        machine.sleep(60)
        query.check(whole=True)
        assert not query.errors
        assert "has not answered" not in caplog.text


def test_briefly_frozen_run_is_waited_for(tmp_path: Path) -> None:
    with program(tmp_path) as spark:
        machine = spark.world.machine
        query = reading(spark)
        for _ in range(3):
            assert spark.host is not None
            machine.freeze(spark.host, 500)
            put(spark, 5)
            machine.sleep(60)
        query.check(whole=True)
        assert not query.errors


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("later", [0.0, 60.0])
def test_loss_that_one_query_accepts_fails_the_other(later: float, repeats: bool, tmp_path: Path) -> None:
    with program(tmp_path) as spark:
        machine = spark.world.machine
        first, second = reading(spark), job(spark, "second", "TRIM_HORIZON")
        machine.sleep(60)
        stop(spark, second)
        put(spark, 10)
        machine.sleep(60)
        stop(spark, first)
        assert (len(first.rows), len(second.rows)) == (20, 10)
        machine.sleep(26 * HOUR)
        put(spark, 5)
        ((key, position),) = first.log[-1][1].items()
        accepted = json.dumps({key.stream: {key.shard: str(position)}})
        first.options = SourceOptions.parse({**first.options.given, "acceptDataLoss": accepted})
        second.written = not repeats
        for each in (first, second):
            each.stopping = False
            each.running = spark.start(each)
            machine.sleep(later)
        machine.sleep(120)
        assert [type(error).__name__ for error in second.errors] == ["DataLossError"]
        assert len(second.rows) == 10
