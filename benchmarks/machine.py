"""What benchmarks run on: processes of their own, the local AWS in one, and a Spark session as a user would start it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

import kinesis_efo
from kinesis_efo_local import FaultInjection, LocalAws, Settings

ROOT = Path(__file__).resolve().parent.parent
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_EC2_METADATA_DISABLED": "true"}
AWS_PYTHON = "KINESIS_EFO_BENCH_AWS"
"""The variable that names the Python of the local AWS: an earlier version of the library is measured against the present one's."""


class AwsProcess(LocalAws):
    """The local AWS in a separate process, so that its work is not measured; its clients are in this one."""

    _pem = ""
    _module = "benchmarks.machine"

    def __enter__(self) -> AwsProcess:
        return self.start()

    def start(self) -> AwsProcess:
        """See `LocalAws`."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        given = {name: value for name, value in asdict(self.settings).items() if value != getattr(Settings(), name)}
        command = [os.environ.get(AWS_PYTHON) or sys.executable, "-m", self._module]
        self._process = subprocess.Popen(
            [*command, json.dumps([given, self._wanted_tls_port])],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not (said := self._process.stdout.readline()):
            raise RuntimeError("the local AWS did not start; what it said is above")
        self._port, self._tls_port, self._pem = json.loads(said)
        return self

    @property
    def ca_path(self) -> str:
        """See `LocalAws`."""
        return self._pem

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds that the other process has used."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def subscriptions(self) -> int:
        """How many subscriptions were asked for so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def stop(self) -> None:
        """See `LocalAws`."""
        self._process.communicate()
        while self._clients:
            self._clients.pop().close()


def anonymous_memory(pid: int) -> int:
    """Anonymous memory of a process, bytes: what runs out. The pages of libraries are the system's to drop."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc names no RssAnon: this benchmark needs Linux")


def serve(settings: dict[str, Any], tls_port: int | None, faults: FaultInjection | None = None) -> None:
    """Be the local AWS of an `AwsProcess`, until its standard input ends."""
    with LocalAws(settings=Settings(**settings), tls_port=tls_port, faults=faults) as aws:
        encrypted = (0, "") if tls_port is None else (int(aws.tls_endpoint_url.rpartition(":")[2]), aws.ca_path)
        print(json.dumps((aws.port, *encrypted)), flush=True)
        for _ in sys.stdin:
            print(sum(call.operation == "SubscribeToShard" for call in aws.kinesis.trace), flush=True)


@contextlib.contextmanager
def spark_session(cores: int = 2, memory: str = "2g", settings: Mapping[str, str] = {}) -> Iterator[SparkSession]:
    """A session on `local[cores]`. The processes that Spark starts have this repository on their path, and dummy credentials.

    Args:
        cores: How many tasks run at once.
        memory: Of the JVM's heap, at most.
        settings: More of Spark's.
    """
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONPATH=f"{ROOT}{os.pathsep}{Path(kinesis_efo.__file__).parents[1]}",
    )
    session = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName("kinesis-efo benchmarks")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", memory)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config(map=dict(settings))
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


class Pipe:
    """The way to a process.

    Attributes:
        pid: Its id.
    """

    def __init__(self, pipe: Connection, pid: int) -> None:
        self._pipe = pipe
        self.pid = pid

    def send(self, message: Any) -> None:
        """Send something."""
        self._pipe.send(message)

    def recv(self, seconds: float = 300.0) -> Any:
        """What it sends next."""
        if not self._pipe.poll(seconds):
            raise RuntimeError(
                f"a process of the benchmark said nothing for {seconds:.0f} s; run it on an idle machine"
            )
        return self._pipe.recv()


@contextlib.contextmanager
def process_of(work: Callable[..., None], *arguments: Any) -> Iterator[Pipe]:
    """Run a function in a process of its own; its first argument is a pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        yield Pipe(ours, process.pid)
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    serve(*json.loads(sys.argv[1]))
