"""Queries of one Spark program share one run, whoever of them begins and ends first.

The test plays Spark's part: it is the parent of all readers' processes, as the driver's JVM is.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.private_directory import notes_directory
from tests.support.played_spark import PlayedSpark
from tests.support.world import World, wait_until

pytestmark = pytest.mark.spark
MakeWorld = Callable[..., World]
Play = Callable[..., PlayedSpark]


class Reading:
    """One query: it reads on from where it is."""

    def __init__(self, play: Play, world: World, **options: str) -> None:
        self.spark = play(world, leaseTimeout="600s", **options)
        self.at = self.spark.initial_offset()
        self.rows: list[bytes] = []

    def until(self, rows: list[bytes]) -> None:
        """Read until these rows have come, each once and in order."""

        def read() -> bool:
            self.at, found = self.spark.step(self.at)
            self.rows += found
            return len(self.rows) >= len(rows)

        wait_until(read, what=f"{len(rows)} rows")
        assert self.rows == rows


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


def test_two_queries_share_one_run(world: MakeWorld, play: Play) -> None:
    w = world()
    rows = put(w, numbered(0, 20))
    first = Reading(play, w)
    first.until(rows)
    second = Reading(play, w)
    rows += put(w, numbered(20, 20))
    second.until(rows)
    first.until(rows)
    assert epoch(w) == 1
    assert len(files()) == 1
    second.spark.close()
    assert second.spark.process.returncode not in (None, -signal.SIGKILL)
    rows += put(w, numbered(40, 5))
    first.until(rows)
    first.spark.close()
    assert not owners(w)
    assert not files()


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
