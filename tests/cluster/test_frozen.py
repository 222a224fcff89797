"""A task that is frozen in the middle of its range, with Spark's own speculation: its copy reads on, and every record comes once."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.arriving import numbered
from tests.support.cluster import DAEMON, EXECUTOR, WORKERS
from tests.support.driven import Driver, assert_once_and_in_order
from tests.support.hosts import Host, Hosts
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
RECORDS = 2000
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "5s",
}


@pytest.fixture
def frozen(hosts: Hosts) -> Iterator[Callable[[Host], None]]:
    """Stops all executors that came to a host during this test, with their Python workers."""
    before = {executor for name in WORKERS for executor in executors(hosts[name])}
    stopped: list[psutil.Process] = []

    def freeze(host: Host) -> None:
        for executor in set(executors(host)) - before:
            # The JVM first: it would start workers anew.
            stopped.extend([executor, *executor.children(recursive=True)])
        assert any(DAEMON in " ".join(process.cmdline()) for process in stopped)
        for process in stopped:
            process.suspend()

    yield freeze
    for process in stopped:
        process.kill()


def executors(host: Host) -> list[psutil.Process]:
    return [process for process in host.processes(EXECUTOR) if process.name() == "java"]


def test_a_frozen_tasks_copy_reads_within_a_minute(
    world: Callable[..., World],
    hosts: Hosts,
    new_driver: Callable[..., Driver],
    frozen: Callable[[Host], None],
    tmp_path: Path,
) -> None:
    w = world({"orders": 2})
    put = w.put(numbered(RECORDS, size=8000))
    flags = tmp_path / "flags"
    flags.mkdir()
    # A run plans one micro-batch of all that is there, and is killed in it. The next one has less room than its ranges take.
    killed = new_driver()
    options = {"catchUp": "true", "bufferBytes": "64m"}
    killed.start("killed", w, tmp_path, options=options, flags=str(flags))
    wait_until(lambda: [*flags.iterdir()], 120, "rows in a task")
    killed.kill()
    for path in flags.iterdir():
        path.unlink()
    driver = new_driver(conf=SPECULATION)
    query = driver.start("frozen", w, tmp_path, options={"bufferBytes": "16m"}, flags=str(flags))
    wait_until(lambda: [*flags.iterdir()], 120, "rows in a task")
    assert query.rows() == []
    (victim,) = flags.iterdir()
    frozen(hosts[victim.name])
    (flags / "go").touch()
    began = time.monotonic()
    assert_once_and_in_order(query.wait_for_rows(put, 60), put)
    assert time.monotonic() - began < 60
    put += w.put(numbered(50, first=put))
    assert_once_and_in_order(query.wait_for_rows(put, 60), put)
