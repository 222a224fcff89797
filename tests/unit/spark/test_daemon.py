"""The daemon of Spark's Python workers, started and asked for a worker as Spark does it."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")]


class Worker(NamedTuple):
    """A worker that has no task yet.

    Attributes:
        daemon: The command line of its daemon.
        libraries: The files that are mapped into its memory.
        threads: The number of its threads.
    """

    daemon: list[str]
    libraries: str
    threads: int


@contextmanager
def worker(**environment: str) -> Iterator[Worker]:
    """Start the daemon, and have it fork a worker."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", "kinesis_efo.spark.daemon", "pyspark.worker"],
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    with daemon.stdin, daemon.stdout:
        (port,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            (pid,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
            here = Path("/proc", str(pid))
            command = Path("/proc", str(daemon.pid), "cmdline").read_text().split("\0")
            yield Worker(command, (here / "maps").read_text(), len(list((here / "task").iterdir())))
    daemon.wait(30)  # Spark ends it by closing its input


@pytest.mark.slow
def test_a_new_worker_has_its_imports() -> None:
    with worker() as new:
        assert "kinesis_efo.spark.daemon" in new.daemon
        assert "/pyarrow/_compute" in new.libraries
        assert "/msgspec/" in new.libraries
        assert new.threads == 1


@pytest.mark.slow
def test_after_threads_have_started_sparks_daemon_forks() -> None:
    """A fork copies no threads, and keeps locked what they had locked."""
    with worker(JE_ARROW_MALLOC_CONF="background_thread:true", ARROW_DEFAULT_MEMORY_POOL="jemalloc") as new:
        assert "pyspark.daemon" in new.daemon
        assert "pyspark.worker" in new.daemon
        assert "/pyarrow/_compute" not in new.libraries
