"""Drivers in processes of their own, and a local AWS that outlives them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.support.class_archive import jvm_options
from tests.support.played_spark import FEW_CERTIFICATES
from tests.support.world import World, wait_until
from tests.support.world import world as world

DRIVER = Path(__file__).with_name("driver.py")


class Driver:
    """One run of the driver program; a process group of its own.

    Args:
        directory: Where checkpoint, output and flags are; runs with the same one continue each other.
        world: What is read.
        config: See `driver.py`.
    """

    number = 0

    def __init__(self, directory: Path, world: World, **config: Any) -> None:
        (directory / "flags").mkdir(exist_ok=True)
        Driver.number += 1
        self.log = directory / f"driver{Driver.number}.log"
        options = {**world.options, "startingPosition": "TRIM_HORIZON", **config.pop("options", {})}
        paths = {name: str(directory / name) for name in ("checkpoint", "output", "flags")}
        argument = json.dumps({**paths, "options": options, **config})
        variables = {
            **os.environ,
            **world.aws.environment,
            **FEW_CERTIFICATES,
            "JAVA_TOOL_OPTIONS": jvm_options(),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER), argument],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=variables,
                start_new_session=True,
            )

    def go(self) -> None:
        """Start the query as soon as Spark is up."""
        self.wait_for("READY")
        assert self.process.stdin
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def wait_for(self, word: str, seconds: float = 120.0) -> None:
        """Wait until the driver says something."""

        def said() -> bool:
            text = self.log.read_text(errors="replace")
            assert word in text or self.process.poll() is None, text[-5000:]
            return word in text

        wait_until(said, seconds, word)

    def wait_killed(self, seconds: float = 120.0) -> None:
        """Wait until it was killed from within."""
        code = self.process.wait(seconds)
        assert code == -signal.SIGKILL, self.log.read_text(errors="replace")[-5000:]
        self.close()

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and the reader's process, at once."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Makes drivers that continue each other; arguments as `Driver` without the directory."""
    started: list[Driver] = []

    def make(world: World, **config: Any) -> Driver:
        started.append(Driver(tmp_path, world, **config))
        return started[-1]

    yield make
    for each in started:
        each.kill()


@pytest.fixture
def output(tmp_path: Path) -> Callable[[], list[int]]:
    """The numbers in all files written so far, sorted."""
    known: dict[Path, list[int]] = {}

    def numbers(file: Path) -> list[int]:
        # Spark writes files under other names first: one that is there stays as it is, until it is deleted.
        if file not in known:
            known[file] = [int(data[:8]) for data in pq.read_table(file, columns=["data"])["data"].to_pylist()]
        return known[file]

    def read() -> list[int]:
        try:
            return sorted(n for file in (tmp_path / "output").glob("batch=*/*.parquet") for n in numbers(file))
        except (OSError, ValueError):
            return []  # a directory is just being written anew

    return read


@pytest.fixture(scope="package")
def local_aws() -> Iterator[LocalAws]:
    settings = Settings(
        consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.5, max_event_records=20
    )
    with LocalAws(settings=settings) as aws:
        yield aws
