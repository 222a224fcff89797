"""Spark programs in virtual time: what one query, or the run, does to others. Random scenarios are in `tests/chaos/test_seeds_program.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.emulator.faults import ScriptedFaults
from tests.emulator.machine import BEGAN, Machine
from tests.emulator.program import Job, ProgramWorld, SparkProgram, in_virtual_time
from tests.emulator.script import Fault


@contextmanager
def program(directory: Path, *script: Fault) -> Iterator[SparkProgram]:
    """A program on a stream with one shard."""
    machine = Machine()
    with in_virtual_time(machine):
        faults = ScriptedFaults(script, lambda: machine.now)
        yield SparkProgram(ProgramWorld(machine, directory, Random(1), 1, faults), "program", "here")


def job(program: SparkProgram, name: str, start: str) -> Job:
    """Start a query."""
    options = {"leaseTimeout": "10s", "slowQueries": "apart", "startingPosition": start}
    found = Job(program.world, name, Random(name), **options)
    found.running = program.start(found)
    return found


def put(program: SparkProgram, count: int) -> None:
    for _ in range(count):
        program.world.put("key", 10)


def test_query_at_latest_does_not_begin_at_another_ones_time(tmp_path: Path) -> None:
    with program(tmp_path, Fault("slow opening", 0, seconds=20)) as spark:
        machine = spark.world.machine
        began = machine.now
        put(spark, 60)
        machine.sleep(60)
        first = job(spark, "first", f"AT_TIMESTAMP:{round((BEGAN + began) * 1000)}")
        machine.sleep(5)
        # No event has come yet: the shared buffer stands at the time of the first.
        second, third = job(spark, "second", "LATEST"), job(spark, "third", "LATEST")
        machine.sleep(5)
        put(spark, 7)
        machine.sleep(60)
        put(spark, 8)
        machine.sleep(60)
        assert not [error for each in (first, second, third) for error in each.errors]
        assert len(first.rows) == 75
        assert len(second.rows) == len(third.rows) == 15


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
