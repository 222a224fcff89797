"""Six stalls of a running job, staged with real processes: `kinesis-efo top` or the job's log shows the cause within five minutes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from kinesis_efo_local import LocalAws, NoFaults, Request, Settings
from kinesis_efo_local.errors import AwsError
from kinesis_efo_local.fault_injection import Reset
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


class Faults(NoFaults):
    """Throttles reading while `throttled` is set."""

    throttled = False

    async def before(self, request: Request) -> None:
        if self.throttled and request.operation == "SubscribeToShard":
            raise AwsError("LimitExceededException", "Rate exceeded for consumer", 400)

    def frame(self, subscription: object, frame: bytes) -> list[object]:  # type: ignore[override]
        return [Reset()] if self.throttled else [frame]


class Network:
    """The way to AWS: a port that forwards to the local AWS, or lets nothing through while `down` is set.

    Attributes:
        url: The endpoint for the job and the command.
    """

    def __init__(self, target: int) -> None:
        self.down = threading.Event()
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                pair = self._listening.accept()[0], socket.create_connection(("127.0.0.1", self._target))
                self._sockets += pair
                for source, sink in (pair, pair[::-1]):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                while self.down.is_set():
                    time.sleep(0.05)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)


class Stage:
    """A job that reads a stream into which records keep coming, and the command `top` beside it.

    Attributes:
        world: What it reads.
        network: Its way to AWS.
        faults: What AWS does wrong.
        lock: The file whose lock the sink takes for each micro-batch.
        small: A file system of its own, with the job's output and checkpoint.
    """

    def __init__(self, directory: Path, world: World, network: Network, faults: Faults, stack: ExitStack) -> None:
        self.world, self.network, self.faults = world, network, faults
        self.lock, self.small = directory / "lock", directory / "small"
        self.small.mkdir()
        self._directory = directory
        self._stack = stack
        program = directory / "job.py"
        program.write_text(JOB)
        where = (str(world.manifest), network.url, str(self.lock), f"{self.small}/output", f"{self.small}/checkpoint")
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

    def top(self) -> Callable[[], str]:
        """Start `top`; returns a function that returns all that it has printed."""
        file = self._directory / f"top{time.monotonic()}.log"
        program = "from kinesis_efo_tools.cli import main; main()"
        options = ["--manifest", str(self.world.manifest), "--endpoint-url", self.network.url, "--interval", "2s"]
        self._start([sys.executable, "-c", program, "top", *options], file, {})
        return lambda: file.read_text(errors="replace")


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    faults = Faults()
    settings = Settings(consumer_creating_seconds=0.0, consumer_deleting_seconds=0.0)
    with LocalAws(settings=settings, faults=faults) as aws, ExitStack() as stack:
        world = make_world(aws, tmp_path, {"orders": 2})
        network = Network(int(aws.endpoint_url.rpartition(":")[2]))
        stack.callback(network.close)
        stack.enter_context(arriving(world, first=0, every=0.5))
        yield Stage(tmp_path, world, network, faults, stack)
