"""SIGKILL of a driver at the points that hurt, of all its processes and of some: the output equals the input,
and no process, port or subscription is left.

Kills at random times are in test_kills_of_parts.py and the soak. What ends by itself is tested with the process that Spark keeps
(integration/spark/test_lifecycle.py).
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kinesis_efo_local import LocalAws
from tests.chaos.conftest import Driver
from tests.support.arriving import numbered
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark40, pytest.mark.long]
MakeWorld = Callable[..., World]
MakeDriver = Callable[..., Driver]
Output = Callable[[], list[int]]


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

    # In a task, with the offset logged.
    current = driver(w, options=limit, killInTask=30)
    current.go()
    # Each driver starts its Spark while the one before still runs.
    standby = driver(w, options=limit, killAfterSink=2)
    current.wait_killed()
    assert _logged(tmp_path, "offsets") > _logged(tmp_path, "commits"), "killed between offset log and task end"

    # After the sink's commit and before Spark's.
    current, standby = standby, driver(w)
    current.go()
    current.wait_killed()
    written = len(list((tmp_path / "output").glob("batch=*")))
    assert written > _logged(tmp_path, "commits"), "killed after the sink's commit and before Spark's"

    current = standby
    put += w.put(numbered(300, first=put))
    current.go()
    wait_until(lambda: len(output()) >= put, 120, f"{put} rows; {current.log}")
    assert output() == list(range(put))

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


def _logged(directory: Path, log: str) -> int:
    """Micro-batches in one of Spark's logs."""
    return len([file for file in (directory / "checkpoint" / log).glob("*") if file.name.isdigit()])
