"""SIGKILL of a whole driver, at the points that hurt and at random ones; the output equals the input."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.chaos.conftest import Driver
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]
MakeWorld = Callable[..., World]
MakeDriver = Callable[..., Driver]
Output = Callable[[], list[int]]

KILLS = 10 if os.environ.get("KINESIS_EFO_FULL") == "1" else 5
"""On each of the two versions of Spark, at points of their own."""


def numbered(count: int, first: int = 0, size: int = 0) -> list[tuple[str, bytes]]:
    return [(f"k{n % 13}", f"{n:08d}".encode().ljust(size)) for n in range(first, first + count)]


@contextmanager
def arriving(world: World, every: float = 0.1, count: int = 20) -> Iterator[list[int]]:
    """Records that keep coming; yields what was put so far, as one number."""
    put, stop = [0], threading.Event()

    def run() -> None:
        while not stop.wait(every):
            put[0] += world.put(numbered(count, first=put[0]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield put
    finally:
        stop.set()
        thread.join()


def test_killed_in_a_task_and_after_the_sinks_commit(
    world: MakeWorld, driver: MakeDriver, output: Output, tmp_path: Path
) -> None:
    w = world({"orders": 2})
    w.put(numbered(400))
    options = {"maxRecordsPerTrigger": "100"}
    first = driver(w, options=options, killInTask=30)
    first.go()
    second = driver(w, options=options, killAfterSink=2)
    first.wait_killed()
    assert _logged(tmp_path, "offsets") > _logged(tmp_path, "commits"), "killed between offset log and task end"
    second.go()
    third = driver(w, options=options)
    second.wait_killed()
    written = len(list((tmp_path / "output").glob("batch=*")))
    assert written > _logged(tmp_path, "commits"), "killed after the sink's commit and before Spark's"
    w.put(numbered(100, first=400))
    third.go()
    wait_until(lambda: len(output()) >= 500, 120, f"500 rows; {third.log}")
    third.kill()
    assert output() == list(range(500))


@pytest.mark.timeout(600)
def test_killed_at_random_time_and_again(world: MakeWorld, driver: MakeDriver, output: Output, tmp_path: Path) -> None:
    w = world({"orders": 3})
    points = random.Random(f"{pyspark.__version__} 20131")
    batches = []
    with arriving(w) as put:
        standby = driver(w)
        for kill in range(KILLS):
            running, standby = standby, None
            running.go()
            standby = driver(w)
            running.wait_for("STARTED")
            before = _logged(tmp_path, "commits")
            if kill % 2:
                # From an uncommitted micro-batch or the beginning to somewhere in a later one.
                wait_until(lambda before=before: _logged(tmp_path, "commits") > before, 90, f"progress; {running.log}")  # type: ignore[misc]
                time.sleep(points.uniform(0, 0.5))
            else:
                time.sleep(points.uniform(0, 3))
            running.kill()
            batches.append(_logged(tmp_path, "commits"))
        standby.go()
    wait_until(lambda: len(output()) >= put[0], 120, f"{put[0]} rows; {standby.log}")
    standby.kill()
    assert output() == list(range(put[0]))
    assert batches[-1] >= KILLS // 2, f"the runs got nowhere: {batches}"


def _logged(directory: Path, log: str) -> int:
    """Micro-batches in one of Spark's logs."""
    return len([file for file in (directory / "checkpoint" / log).glob("*") if file.name.isdigit()])
