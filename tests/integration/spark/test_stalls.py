"""Stalls of a running job, staged with real processes: `kinesis-efo top` or the job's log shows the cause within five minutes."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.arriving import arriving
from tests.support.class_archive import jvm_options
from tests.support.played_spark import CREDENTIALS, FEW_CERTIFICATES
from tests.support.world import World, make_world, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

SHOWN_WITHIN: Final = 300.0
"""Seconds from the stall until its cause is on the screen."""

JOB: Final = '''
"""A job as a user writes it: each micro-batch becomes a directory, once the lock of the table is free."""

import fcntl
import logging
import sys

from pyspark.sql import SparkSession

from kinesis_efo import LagListener, job, read_stream

manifest, endpoint, lock, output, checkpoint = sys.argv[1:]
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
logging.getLogger("py4j").setLevel(logging.WARNING)


def write(batch, number):
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            open(f"{lock}-awaited", "w").close()  # for the test; a real sink says nothing
            fcntl.flock(file, fcntl.LOCK_EX)
        batch.write.mode("overwrite").parquet(f"{output}/batch={number}")


spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("WARN")
spark.streams.addListener(LagListener())
with job(spark):
    records = read_stream(spark, manifest=manifest, endpointUrl=endpoint, startingPosition="TRIM_HORIZON", leaseTimeout="10s")
    query = records.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).queryName("orders")
    query.trigger(processingTime="1 second").start().awaitTermination()
'''


class Stage:
    """A job that reads a stream into which records keep coming, and the command `top` beside it.

    Attributes:
        world: What it reads.
        lock: The file whose lock the sink takes for each micro-batch.
        small: A file system of its own, with the job's output and checkpoint.
    """

    def __init__(self, directory: Path, world: World, stack: ExitStack) -> None:
        self.world = world
        self.lock, self.small = directory / "lock", directory / "small"
        self.small.mkdir()
        self._directory = directory
        self._stack = stack
        program = directory / "job.py"
        program.write_text(JOB)
        where = (
            str(world.manifest),
            world.aws.endpoint_url,
            str(self.lock),
            f"{self.small}/output",
            f"{self.small}/checkpoint",
        )
        # A file system that can be filled, which only the job sees.
        mounted = f'mount -t tmpfs -o size=32m none {self.small} && exec "$@"'
        command = [
            "unshare",
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            mounted,
            "job",
            sys.executable,
            str(program),
            *where,
        ]
        self._log = directory / "job.log"
        self.process = self._start(command, self._log, {"JAVA_TOOL_OPTIONS": jvm_options()})
        wait_until(lambda: len(re.findall("rows in", self.log)) >= 2, 180, f"two micro-batches, {self._log}", every=0.5)

    def _start(self, command: list[str], log: Path, more: dict[str, str]) -> subprocess.Popen[bytes]:
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "COLUMNS": "160"}
        environment = {**os.environ, **CREDENTIALS, **FEW_CERTIFICATES, **python, **more}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        self._stack.callback(process.wait)
        self._stack.callback(lambda: _kill_group(process.pid))
        return process

    @property
    def log(self) -> str:
        """The job's log."""
        return self._log.read_text(errors="replace")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the sink's lock; begins once a micro-batch waits for it."""
        with self.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            wait_until(self.lock.with_name("lock-awaited").exists, 60, "a sink that waits", every=0.2)
            yield

    def top(self) -> Callable[[], str]:
        """Start `top`; returns a function that returns all that it has printed."""
        file = self._directory / f"top{time.monotonic()}.log"
        program = "from kinesis_efo_tools.cli import main; main()"
        options = [
            "--manifest",
            str(self.world.manifest),
            "--endpoint-url",
            self.world.aws.endpoint_url,
            "--interval",
            "2s",
        ]
        self._start([sys.executable, "-c", program, "top", *options], file, {})
        return lambda: file.read_text(errors="replace")


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    settings = Settings(consumer_creating_seconds=0.0, consumer_deleting_seconds=0.0)
    with LocalAws(settings=settings) as aws, ExitStack() as stack:
        world = make_world(aws, tmp_path, {"orders": 2})
        stack.enter_context(arriving(world, first=0, every=0.5))
        yield Stage(tmp_path, world, stack)


def shown(what: str, *places: Callable[[], str]) -> str:
    """Wait until a pattern is on the screen, which is the end of what `top` printed or of the log; returns what is there."""
    began = time.monotonic()

    def look() -> str | None:
        return next((text for place in places if re.search(what, text := place(), re.DOTALL)), None)

    found: str = wait_until(look, SHOWN_WITHIN, what, every=1.0)
    assert time.monotonic() - began < SHOWN_WITHIN
    return found


def last(screens: Callable[[], str]) -> Callable[[], str]:
    """The last whole screen that `top` has printed."""
    return lambda: (["", *re.split(r"(?m)^(?=lake  20)", screens())])[-2:][0]


@pytest.mark.parametrize("in_sink", [False, True], ids=["between micro-batches", "while the sink works"])
def test_a_deleted_consumer_is_named(stage: Stage, in_sink: bool) -> None:
    with ExitStack() as locking:
        if in_sink:
            locking.enter_context(stage.locked())
        stage.world.kinesis.deregister_stream_consumer(ConsumerARN=stage.world.consumers["orders"])
        shown(r"no run holds the lease", stage.top())
    shown(
        rf"consumer {stage.world.consumers['orders']} does not exist \(any more\); its ARN came from \S+manifest",
        lambda: stage.log,
    )
    assert stage.process.wait(60) == 1


def test_a_locked_sink_is_named(stage: Stage) -> None:
    screen = last(stage.top())
    with stage.locked():
        found = shown(
            r"stuck: no micro-batch has ended for minutes \(2 shards\).*look in Spark's UI at what .* or the sink wait for",
            screen,
        )
    assert re.search(r"orders: 2 shards, 2m\S+ behind, in .*, processed 0 B/s", found)
    shown(r"orders: 2 shards, \d\.\ds behind", screen)


def test_a_frozen_run_is_named(stage: Stage) -> None:
    screen, run = last(stage.top()), stage.world.reader()
    shown(r"streaming", screen)
    run.send_signal(signal.SIGSTOP)
    shown(r"no reply: the run does not reply.*look whether the driver runs, at its log", screen)
    shown(
        rf"the process that fetches orders \(pid {run.pid}, state T: stopped\) has not answered for \d+ s\. .*continue it",
        lambda: stage.log,
    )
    run.send_signal(signal.SIGCONT)
    shown(r"orders: 2 shards, \d\.\ds behind", screen)


def test_a_full_disk_is_named(stage: Stage) -> None:
    # By way of the job's root directory, because only the job sees this file system.
    fill = ["dd", "if=/dev/zero", f"of=/proc/{stage.process.pid}/root{stage.small}/filler", "bs=64k"]
    subprocess.run(fill, stderr=subprocess.DEVNULL, check=False)
    screen = stage.top()
    assert stage.process.wait(SHOWN_WITHIN) == 1
    assert "No space left on device" in stage.log[-3000:]
    shown(r"no run holds the lease", screen)
