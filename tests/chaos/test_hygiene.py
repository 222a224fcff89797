"""What is left of a query whose processes die: no process, no port, no connection, no subscription, and all of its data.

What ends by itself is tested with the process that Spark keeps (integration/spark/test_lifecycle.py) and without Spark
(test_workers.py); here real ones are killed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest

from kinesis_efo.local import LocalAws
from tests.chaos.conftest import Driver
from tests.chaos.test_kill import numbered
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark40, pytest.mark.slow]


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


def listening(processes: list[psutil.Process]) -> set[int]:
    ports = set()
    for process in processes:
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        ports |= {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    return ports


def test_a_lost_executor_costs_nothing_and_a_crashed_driver_leaves_nothing(
    local_aws: LocalAws,
    world: Callable[..., World],
    driver: Callable[..., Driver],
    output: Callable[[], list[int]],
) -> None:
    w = world({"orders": 2})
    w.put(numbered(300))
    names = w.streams.values()

    def subscriptions() -> list[Any]:
        return [each for each in local_aws.kinesis.subscriptions if each.consumer.stream.name in names]

    first = driver(w, master="local[2,4]")
    first.go()
    wait_until(lambda: len(output()) == 300, 120, f"300 rows; {first.log}")

    workers = running(family(first), "pyspark.daemon")
    assert workers
    for process in workers:
        process.kill()
    w.put(numbered(300, first=300))
    wait_until(lambda: len(output()) == 600, 120, f"600 rows; {first.log}")
    assert first.process.poll() is None

    everything = family(first)
    (reader,) = running(everything, "python_streaming_source_runner")
    ports = listening([reader])
    assert len(ports) == 1
    assert len(subscriptions()) == 2
    # What it is just starting still carries its command line.
    jvm = min(running(everything, "org.apache.spark.deploy.SparkSubmit"), key=psutil.Process.create_time)
    jvm.kill()
    first.process.wait(60)
    _, alive = psutil.wait_procs(everything, 60)
    assert not alive, "processes outlive the driver"
    wait_until(lambda: not subscriptions(), 10, "subscriptions end")
    assert not ports & {each.laddr.port for each in psutil.net_connections("tcp") if each.laddr}

    w.put(numbered(300, first=600))
    second = driver(w)
    second.go()
    wait_until(lambda: len(output()) >= 900, 120, f"900 rows; {second.log}")
    second.kill()
    assert output() == list(range(900))
