"""SIGKILL of a driver, at the points that hurt and at random ones, of all its processes and of some: the output equals the input,
and no process, port or subscription is left.

What ends by itself is tested with the process that Spark keeps (integration/spark/test_lifecycle.py) and without Spark
(test_workers.py).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from kinesis_efo.tasks.compat import SPARK_VERSION
from kinesis_efo_local import LocalAws
from tests.chaos.conftest import Driver
from tests.support.arriving import arriving, numbered
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark40, pytest.mark.long]
MakeWorld = Callable[..., World]
MakeDriver = Callable[..., Driver]
Output = Callable[[], list[int]]

FULL = os.environ.get("KINESIS_EFO_FULL") == "1"
KILLS = 10 if FULL else 2
"""At random times, on Spark 4.0: on 4.3, the soak and the demo kill a driver at random times."""

OTHER = Path(sys.prefix).with_name(".venv-spark40")
"""The environment of Spark 4.0, beside that of 4.3: each reads on where the other was killed."""


def family(driver: Driver) -> list[psutil.Process]:
    """The driver and all it started."""
    root = psutil.Process(driver.process.pid)
    return [root, *root.children(recursive=True)]


def running(processes: list[psutil.Process], word: str) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def listening() -> set[str]:
    """Inodes of all sockets that listen, since the port of one that is closed may be somebody else's a moment later."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {fields[9] for fields in lines if fields[3] == "0A"}


def sockets(process: psutil.Process) -> set[str]:
    """Inodes of the sockets of a process."""
    found = set()
    for file in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):
            found.add(file.readlink().name.removeprefix("socket:[").removesuffix("]"))
    return found


@pytest.mark.timeout(600)
def test_repeated_driver_kills_lose_and_leave_nothing(
    local_aws: LocalAws, world: MakeWorld, driver: MakeDriver, output: Output, tmp_path: Path
) -> None:
    w = world({"orders": 3})
    put = w.put(numbered(400))
    limit = {"maxRecordsPerTrigger": "100"}
    at_random = FULL or SPARK_VERSION < (4, 1)
    other = None if at_random else OTHER

    # In a task, with the offset logged.
    current = first = driver(w, options=limit, killInTask=30)
    current.go()
    # Each driver starts its Spark while the one before still runs.
    standby = driver(w, other, options=limit, killAfterSink=2)
    current.wait_killed()
    assert _logged(tmp_path, "offsets") > _logged(tmp_path, "commits"), "killed between offset log and task end"

    # After the sink's commit and before Spark's.
    current, standby = standby, driver(w)
    second = current
    current.go()
    current.wait_killed()
    written = len(list((tmp_path / "output").glob("batch=*")))
    assert written > _logged(tmp_path, "commits"), "killed after the sink's commit and before Spark's"

    # At random times.
    points = random.Random(f"{pyspark.__version__} 20131")
    batches = [_logged(tmp_path, "commits")]
    with arriving(w, first=put) as count:
        for kill in range(KILLS if at_random else 0):
            current, standby = standby, driver(w, master="local[2,4]")
            current.go()
            current.wait_for("STARTED")
            if kill % 2 == 0:
                # From an uncommitted micro-batch or the beginning to somewhere in a later one.
                wait_until(lambda: _logged(tmp_path, "commits") > batches[-1], 90, f"progress; {current.log}")
            # About ten records come in 50 ms.
            at = count[0] + points.randrange(100 if kill % 2 == 0 else 600)
            wait_until(lambda: count[0] >= at)  # noqa: B023
            current.kill()
            batches.append(_logged(tmp_path, "commits"))
        current = standby
        current.go()
    put = count[0]
    wait_until(lambda: len(output()) >= put, 120, f"{put} rows; {current.log}")
    assert output() == list(range(put))
    if not at_random:
        ran_on = (_spark(first), _spark(second), _spark(current))
        assert ran_on[0] == ran_on[2] == pyspark.__version__ and ran_on[1].startswith("4.0")
        current.kill()
        return
    assert batches[-1] - batches[0] >= KILLS // 2, f"the runs got nowhere: {batches}"

    # The workers alone: the tasks are tried again.
    workers = running(family(current), "pyspark.daemon")
    assert workers
    for process in workers:
        process.kill()
    put += w.put(numbered(300, first=put))
    standby = driver(w)
    wait_until(lambda: len(output()) >= put, 120, f"{put} rows; {current.log}")
    assert current.process.poll() is None

    # The JVM alone: the rest ends by itself.
    everything = family(current)
    (reader,) = running(everything, "python_streaming_source_runner")
    ports = listening() & sockets(reader)
    assert len(ports) == 1
    names = w.streams.values()

    def subscriptions() -> list[Any]:
        return [each for each in local_aws.kinesis.subscriptions if each.consumer.stream.name in names]

    assert len(subscriptions()) == 3
    # What it is just starting still carries its command line.
    jvm = min(running(everything, "org.apache.spark.deploy.SparkSubmit"), key=psutil.Process.create_time)
    jvm.kill()
    current.process.wait(60)
    _, alive = psutil.wait_procs(everything, 60)
    assert not alive, "processes outlive the driver"
    wait_until(lambda: not subscriptions(), 60, "subscriptions end")
    assert not ports & listening()

    put += w.put(numbered(300, first=put))
    standby.go()
    wait_until(lambda: len(output()) >= put, 120, f"{put} rows; {standby.log}")
    standby.kill()
    assert output() == list(range(put))


def _spark(driver: Driver) -> str:
    """The version of Spark that a driver has run on."""
    return driver.log.read_text().partition("SPARK ")[2].split()[0]


def _logged(directory: Path, log: str) -> int:
    """Micro-batches in one of Spark's logs."""
    return len([file for file in (directory / "checkpoint" / log).glob("*") if file.name.isdigit()])
