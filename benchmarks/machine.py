"""What benchmarks run on: processes of their own, the local AWS in one, and a Spark session as a user would start it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from kinesis_efo.local import LocalAws, Settings

ROOT = Path(__file__).resolve().parent.parent
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_EC2_METADATA_DISABLED": "true"}


class AwsProcess(LocalAws):
    """The local AWS in a separate process, so that its work is not measured; its clients are in this one."""

    _pem = ""

    def __enter__(self) -> AwsProcess:
        return self.start()

    def start(self) -> AwsProcess:
        """See `LocalAws`."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.settings, self._wanted_tls_port), daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(60):
            raise RuntimeError("the local AWS did not start within 60 s")
        self._port, self._tls_port, self._pem = self._pipe.recv()
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

    def stop(self) -> None:
        """See `LocalAws`."""
        self._pipe.close()
        self._process.join()
        while self._clients:
            self._clients.pop().close()


def anonymous_memory(pid: int) -> int:
    """Anonymous memory of a process, bytes: what runs out. The pages of libraries are the system's to drop."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc names no RssAnon: this benchmark needs Linux")


def _serve(ready: Connection, settings: Settings, tls_port: int | None) -> None:
    with LocalAws(settings=settings, tls_port=tls_port) as aws:
        encrypted = (0, "") if tls_port is None else (int(aws.tls_endpoint_url.rpartition(":")[2]), aws.ca_path)
        ready.send((aws.port, *encrypted))
        with contextlib.suppress(EOFError):
            ready.recv()


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
        PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'lib'}",
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
