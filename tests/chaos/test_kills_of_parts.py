"""SIGKILL of single processes of a program with two queries, again and again, while shards split: each query has each record once, in order,
and no process or subscription is left.

What ends by itself is tested with the process that Spark keeps (integration/spark/test_lifecycle.py).
`KINESIS_EFO_KILLS=50` says how many.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
import pyspark
import pytest

from tests.support.arriving import arriving, numbered
from tests.support.cluster import READER
from tests.support.driven import Driver, Sink, assert_once_and_in_order, local_driver, reshard
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS: Final = int(os.environ.get("KINESIS_EFO_KILLS", "6"))
JVM: Final = "org.apache.spark.deploy.SparkSubmit"
KINDS: Final = ("run", "planner", "workers", "run and planner", "JVM", "all")
RESHARD_EVERY: Final = 4
STILL_SECONDS: Final = 120.0
"""Nobody stands still for longer. A new program has to start its Spark."""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[], Driver]]:
    """Starts Spark programs; all are killed in the end."""
    started: list[Driver] = []

    def start() -> Driver:
        started.append(local_driver(tmp_path / f"driver{len(started)}.log"))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize("options", [{}, {"readMode": "polling"}], ids=["EFO", "polling"])
def test_two_queries_outlive_kills_of_each_part(
    world: Callable[..., World], program: Callable[[], Driver], tmp_path: Path, options: dict[str, str]
) -> None:
    random = Random(f"{pyspark.__version__} 50")
    w = world({"orders": 3})
    driver = program()
    killed: Counter[str] = Counter()

    def sinks_of(driver: Driver) -> list[Sink]:
        return [Sink(driver, w, name, tmp_path, options) for name in ("one", "two")]

    with arriving(w, first=0) as count:
        sinks = sinks_of(driver)
        for number in range(KILLS):
            for sink in sinks:
                sink.query.wait_for_rows(count[0] + 1, STILL_SECONDS)
            # Twenty records come in 100 ms.
            at = count[0] + random.randrange(300)
            wait_until(lambda: count[0] >= at)  # noqa: B023
            # Each kind comes once before any comes again.
            kind = KINDS[number % len(KINDS)]
            killed[kind] += 1
            if "run" in kind:
                # A run whose first planner was killed is nobody's child.
                wait_until(lambda: _reader(w), 60, "a run that holds the lease").kill()
            if kind == "workers":
                # The tasks are tried again.
                for process in _processes(driver, "pyspark.daemon"):
                    process.kill()
            if "planner" in kind:
                random.choice(_processes(driver, READER)).kill()
            if kind in ("JVM", "all"):
                if kind == "JVM":
                    jvm, run = (
                        _processes(driver, JVM)[0],
                        wait_until(lambda: _reader(w), 60, "a run that holds the lease"),
                    )
                    started = [*jvm.children(recursive=True), run]
                    jvm.kill()
                    _, alive = psutil.wait_procs(started, 60)
                    assert not alive, "processes outlive the JVM"
                    wait_until(lambda: not _subscriptions(w), 60, "the end of all subscriptions")
                driver.kill()
                driver = program()
                sinks = sinks_of(driver)
            elif "planner" in kind:
                (failed,) = wait_until(lambda: [sink for sink in sinks if sink.failed], 60, "the end of one query")  # noqa: B023
                failed.start()
            if number % RESHARD_EVERY == RESHARD_EVERY - 1:
                reshard(w, random)
        for sink in sinks:
            sink.query.wait_for_rows(count[0] + 1, STILL_SECONDS)
    for sink in sinks:
        assert_once_and_in_order(sink.query.wait_for_rows(count[0], STILL_SECONDS), count[0])
    assert killed.total() == KILLS


def test_kill_between_the_commits_of_sink_and_spark_repeats_its_rows(
    world: Callable[..., World], program: Callable[[], Driver], tmp_path: Path
) -> None:
    w = world({"orders": 3})
    put = w.put(numbered(400))
    limit = {"maxRecordsPerTrigger": "100"}
    driver = program()
    rows = driver.start("one", w, tmp_path, dies_after=2, options=limit).rows
    driver.process.wait(120)
    written = [row for row in rows() if row.batch == 2]
    assert written and not (tmp_path / "checkpoint" / "commits" / "2").exists()
    put += w.put(numbered(300, first=put))
    found = program().start("two", w, tmp_path, options={}).wait_for_rows(put)
    assert_once_and_in_order(found, put)
    assert sorted(row for row in found if row.batch == 2) == sorted(written)


def _subscriptions(w: World) -> list[Any]:
    names = w.streams.values()
    return [each for each in w.aws.kinesis.subscriptions if each.consumer.stream.name in names]


def _reader(w: World) -> psutil.Process | None:
    with suppress(ValueError, psutil.Error):
        return w.reader()
    return None


def _processes(driver: Driver, word: str) -> list[psutil.Process]:
    """Those that a driver has started, directly or not, with a word in their command lines."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process(driver.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            # What a process is just starting still carries its command line.
            if word in " ".join(process.cmdline()) and process.ppid() not in found:
                found[process.pid] = process
    assert found, f"no process has {word} in its command line; {driver.log}"
    return list(found.values())
