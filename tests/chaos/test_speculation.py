"""Speculation: two attempts of one task read one range at the same time.

Spark never starts a speculative attempt on the host of the slow one, nor in a local master: this takes a cluster of two hosts,
which 127.0.0.2 and 127.0.0.3 are to it.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from tests.chaos.conftest import Driver
from tests.support.arriving import numbered
from tests.support.ports import free_ports
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark40, pytest.mark.long]

SPARK = Path(pyspark.__file__).parent
STALL = 3600
"""Seconds that the slow attempt takes: longer than the test, so that only the speculative one can end the micro-batch."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone master with a worker of one core on each of two hosts."""
    (port,) = free_ports()
    url = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_HOME": str(SPARK), "SPARK_DAEMON_MEMORY": "256m"}
    environment.pop("SPARK_LOCAL_IP", None)
    commands = [["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]]
    for host in ("127.0.0.2", "127.0.0.3"):
        options = ["--host", host, "--cores", "1", "--memory", "512m", "--work-dir", str(tmp_path / host)]
        commands.append(["org.apache.spark.deploy.worker.Worker", *options, url])
    with (tmp_path / "cluster.log").open("wb") as log:
        started = [
            subprocess.Popen(
                [str(SPARK / "bin/spark-class"), *command, "--webui-port", "0"],
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            for command in commands
        ]
    try:
        text = (tmp_path / "cluster.log").read_text
        wait_until(lambda: text().count("Registering worker") == 2, 60, f"two workers; {tmp_path}/cluster.log")
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_speculative_attempt_of_a_slow_task_reads_the_same(
    cluster: str,
    world: Callable[..., World],
    driver: Callable[..., Driver],
    output: Callable[[], list[int]],
    tmp_path: Path,
) -> None:
    w = world()
    w.put(numbered(700, size=8000))
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "1s",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
    }
    run = driver(w, master=cluster, conf=conf, stallFirstAttempt=STALL)
    run.go()
    run.wait_for("STARTED")
    wait_until(lambda: len(output()) >= 700, 300, f"700 rows; {run.log}")
    assert (tmp_path / "flags/speculative").exists(), "there was no speculative attempt"
    w.put(numbered(50, first=700))
    wait_until(lambda: len(output()) >= 750, 300, f"750 rows; {run.log}")
    run.kill()
    assert output() == list(range(750))
