"""Driver programs in processes of their own, and the queries that they run: started, watched and stopped from a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil
import pyarrow.parquet as pq

from tests.support.played_spark import CREDENTIALS, FEW_CERTIFICATES
from tests.support.world import World, wait_until

MARK = "KINESIS_EFO_TEST"
"""In the environment of a test's program and of all that it starts, to tell it from those of other tests."""


def local_driver(log: Path, cores: int = 4) -> Driver:
    """A Spark program on this machine, in a process group of its own. Its output goes to a file."""
    config = {"master": f"local[{cores}]", "conf": {"spark.ui.enabled": "false"}}
    path = str(Path(__file__).parents[1] / "cluster" / "driver.py")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, path, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **CREDENTIALS, **FEW_CERTIFICATES, "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
    return Driver(process, log)


def processes(mark: str) -> list[psutil.Process]:
    """The processes of a program that run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def with_word(some: list[psutil.Process], word: str) -> list[psutil.Process]:
    """Those of some processes whose command line has a word."""
    found = []
    for process in some:
        with suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found


class Row(NamedTuple):
    """A row that a query has written: the record's number, and the host of the task that read it."""

    batch: int
    number: int
    shard: str
    host: str


class Driver:
    """One run of the program `tests/cluster/driver.py`.

    Args:
        process: The program, with a pipe to its stdin.
        log: Its stdout and stderr.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def start(self, name: str, world: World, directory: Path, **query: Any) -> Query:
        """Start a query that reads a world, from its beginning unless an option says otherwise.

        Args:
            name: Of the query; each that this driver starts has its own.
            world: What is read.
            directory: Where checkpoint and output are; queries with the same one continue each other.
            query: See the program.
        """
        # A busy machine renews late; who stops a query releases its leases.
        options = {**world.options, "leaseTimeout": "10s", "startingPosition": "TRIM_HORIZON"}
        options |= query.pop("options", {})
        paths = {"checkpoint": str(directory / "checkpoint"), "output": str(directory / "output")}
        self.tell({"start": name, "options": options, **paths, **query})
        return Query(self, name, directory / "output")

    def tell(self, command: Mapping[str, Any]) -> None:
        """Hand a command to the program as soon as its Spark is up."""
        wait_until(lambda: "READY\n" in self.said(), 120, f"Spark, see {self.log}")
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL to the program and its JVM, at once. Executors notice that, and end. May be called again."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def said(self) -> str:
        """What the program has said so far. Fails if it has ended."""
        log = self.log.read_text(errors="replace")
        assert self.process.poll() is None, f"the driver has ended: {log[-5000:]}"
        return log


class Query:
    """A query of a driver. Made by `Driver.start`.

    Args:
        driver: The driver.
        name: The query's name there.
        output: The directory that it writes to.
    """

    def __init__(self, driver: Driver, name: str, output: Path) -> None:
        self._driver = driver
        self._name = name
        self._output = output
        self._known: dict[Path, list[Row]] = {}

    def stop(self) -> None:
        """Stop it, as `query.stop()` does."""
        self._driver.tell({"stop": self._name})
        self._wait_for("STOPPED", 60.0)

    def failure(self, seconds: float = 120.0) -> str:
        """Wait until it fails, and return the message of its exception."""
        return str(json.loads(self._wait_for("FAILED", seconds)))

    def rows(self) -> list[Row]:
        """All rows so far, in the order of the micro-batches and, within one and within a shard, as they were read."""
        rows = []
        for batch in sorted(self._output.glob("batch=*"), key=_number):
            try:
                rows += [row for file in sorted(batch.glob("*.parquet")) for row in self._rows(file)]
            except (OSError, ValueError):
                return []  # the directory is just being written anew
        return rows

    def wait_for(self, condition: Callable[[list[Row]], bool], what: str, seconds: float = 120.0) -> list[Row]:
        """Wait until a condition holds for the rows so far, and return them. Fails as soon as the query has failed."""

        def holds() -> list[Row] | None:
            log = self._driver.said()
            assert f"FAILED {self._name} " not in log, log[-5000:]
            rows = self.rows()
            return rows if condition(rows) else None

        found: list[Row] = wait_until(holds, seconds, f"{what}, see {self._driver.log}", every=0.1)
        return found

    def wait_for_rows(self, count: int, seconds: float = 120.0) -> list[Row]:
        """Wait until there are so many rows, at least one. Otherwise as `wait_for`."""
        return self.wait_for(lambda rows: len(rows) >= count, f"{count} rows", seconds)

    def _wait_for(self, word: str, seconds: float) -> str:
        """Wait until the driver says a word about this query, and return what follows it in the line."""
        start = f"{word} {self._name} "
        found = wait_until(
            lambda: [line for line in self._driver.said().splitlines() if line.startswith(start)],
            seconds,
            f"{start!r} in {self._driver.log}",
        )
        return str(found[0].removeprefix(start))

    def _rows(self, file: Path) -> list[Row]:
        # Spark writes files under other names first: one that is there stays as it is, until it is deleted.
        if file not in self._known:
            batch = _number(file.parent)
            columns = pq.read_table(file, columns=["data", "shardId", "host"]).to_pylist()
            self._known[file] = [Row(batch, int(row["data"][:8]), row["shardId"], row["host"]) for row in columns]
        return self._known[file]


class Sink:
    """One of several queries of a program, with a sink of its own; its planner process may be killed."""

    def __init__(
        self, driver: Driver, world: World, name: str, directory: Path, options: Mapping[str, str] = {}
    ) -> None:
        self.name = name
        self._driver = driver
        self._world = world
        self._directory = directory / name
        self._options = options
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Start it, or go on from its checkpoint."""
        self._starts += 1
        self.query = self._driver.start(
            f"{self.name}-{self._starts}", self._world, self._directory, options=dict(self._options)
        )

    @property
    def failed(self) -> bool:
        return f"FAILED {self.name}-{self._starts} " in self._driver.said()


def assert_once_and_in_order(rows: list[Row], count: int) -> None:
    """Each of `count` numbers once, and within a shard in the order in which they were put."""
    assert sorted(row.number for row in rows) == list(range(count))
    by_shard = defaultdict(list)
    for row in rows:
        by_shard[row.shard].append(row.number)
    assert [shard for shard, numbers in by_shard.items() if numbers != sorted(numbers)] == [], "out of order"


def reshard(w: World, random: Random) -> str:
    """Split a shard in the middle, or merge two of three or more; returns "splits" or "merges"."""
    stream = w.streams["orders"]
    shards = [each for each in w.shards() if "EndingSequenceNumber" not in each["SequenceNumberRange"]]
    shards.sort(key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))
    at = random.randrange(len(shards) - 1)
    one, other = (each["ShardId"] for each in shards[at : at + 2])
    merges = random.random() < 0.5 and len(shards) > 2
    if merges:
        w.kinesis.merge_shards(StreamName=stream, ShardToMerge=one, AdjacentShardToMerge=other)
    else:
        middle = sum(int(shards[at]["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey")) // 2
        w.kinesis.split_shard(StreamName=stream, ShardToSplit=one, NewStartingHashKey=str(middle))
    w.wait_active()
    return "merges" if merges else "splits"


def _number(batch: Path) -> int:
    return int(batch.name.removeprefix("batch="))
