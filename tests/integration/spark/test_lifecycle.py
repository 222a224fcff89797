"""The process that Spark keeps for a reader: how it ends, whatever Spark does with its connection.

The test plays Spark's part of the conversation, because a real one closes the connection right after the signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer, UTF8Deserializer, read_int, write_int, write_with_length
from pyspark.sql.streaming import python_streaming_source_runner as runner

from kinesis_efo.fetcher.client import FetcherClient
from kinesis_efo.spark.partitions import KinesisPartition
from kinesis_efo.spark.source import KinesisEfoSource
from tests.integration.spark.conftest import CREDENTIALS
from tests.support.world import World, wait_until

pytestmark = pytest.mark.spark
MakeWorld = Callable[..., World]

_SECRET = "of this test"


class PlayedSpark:
    """Spark's side of the connection to a reader's process.

    Args:
        world: What is read.
        options: Source options on top of the world's.
    """

    def __init__(self, world: World, directory: Path, **options: str) -> None:
        source = KinesisEfoSource({**world.options, "startingPosition": "TRIM_HORIZON", **options})
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            self.process = subprocess.Popen(
                [sys.executable, "-m", runner.__name__],
                env={
                    **os.environ,
                    **CREDENTIALS,
                    "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
                    "PYTHON_WORKER_FACTORY_SECRET": _SECRET,
                },
                stderr=subprocess.PIPE,
            )
            self.connection, _ = server.accept()
        self.tasks: list[KinesisPartition] = []
        self.connection.settimeout(60)
        self.stream = self.connection.makefile("rwb")
        assert UTF8Deserializer().loads(self.stream) == _SECRET
        write_with_length(b"ok", self.stream)
        self.stream.flush()
        assert read_int(self.stream) == self.process.pid
        self._send(f"{sys.version_info.major}.{sys.version_info.minor}", str(directory), 0)
        CPickleSerializer()._write_with_length(source, self.stream)
        self._send(source.schema().json(), 10_000)
        self.stream.flush()
        assert read_int(self.stream) == 0

    def initial_offset(self) -> Any:
        """As Spark asks for it."""
        return self._call(runner.INITIAL_OFFSET_FUNC_ID)

    def latest_offset(self, start: Any) -> Any:
        """As Spark asks for it: 4.2 and newer say how far they are, and that there is no limit."""
        ask = getattr(runner, "LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID", None)
        if ask is None:
            return self._call(runner.LATEST_OFFSET_FUNC_ID)
        return self._call(ask, json.dumps(start), json.dumps({"_type": "ReadAllAvailable"}))

    def plan(self, start: Any, end: Any) -> int:
        """As Spark plans a micro-batch; returns the number of its tasks."""
        self._send(runner.PARTITIONS_FUNC_ID, json.dumps(start), json.dumps(end))
        self.stream.flush()
        tasks = read_int(self.stream)
        self.tasks = [pickle.loads(self.stream.read(read_int(self.stream))) for _ in range(tasks)]
        assert read_int(self.stream) == runner.PREFETCHED_RECORDS_NOT_FOUND
        return tasks

    def commit(self, end: Any) -> None:
        """As Spark says it."""
        self._send(runner.COMMIT_FUNC_ID, json.dumps(end))
        self.stream.flush()
        status = read_int(self.stream)
        assert status == 0, UTF8Deserializer().loads(self.stream)

    def close(self) -> None:
        """Close the connection and wait for the process to end."""
        with contextlib.suppress(OSError):
            self.stream.close()
        self.connection.close()
        try:
            self.process.communicate(timeout=30)
        finally:
            self.process.kill()

    def _call(self, function: int, *arguments: str) -> Any:
        self._send(function, *arguments)
        self.stream.flush()
        return json.loads(UTF8Deserializer().loads(self.stream))

    def _send(self, *values: str | int) -> None:
        for value in values:
            if isinstance(value, int):
                write_int(value, self.stream)
            else:
                write_with_length(value.encode(), self.stream)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., PlayedSpark]]:
    """Starts readers' processes; all are ended after the test."""
    with contextlib.ExitStack() as stack:

        def start(world: World, **options: str) -> PlayedSpark:
            played = PlayedSpark(world, tmp_path, **options)
            stack.callback(played.close)
            return played

        yield start


def owners(world: World) -> set[str]:
    return {row["leaseOwner"]["S"] for row in world.leases().values() if "leaseOwner" in row}


def read_to_the_end(spark: PlayedSpark) -> Any:
    start = spark.initial_offset()
    end = wait_until(lambda: (found := spark.latest_offset(start)) != start and found, what="an offset with data")
    assert spark.plan(start, end) == 1
    return end


def read_one_record(
    world: MakeWorld, play: Callable[..., PlayedSpark], lease_timeout: str = "600s"
) -> tuple[World, PlayedSpark, Any]:
    """A reader in the middle of its work, which holds a lease; and the end of its first micro-batch."""
    w = world()
    w.put([("k", b"1")])
    spark = play(w, leaseTimeout=lease_timeout)
    end = read_to_the_end(spark)
    assert len(owners(w)) == 1
    return w, spark, end


def test_asked_to_end_it_releases_the_leases_although_the_connection_stays_open(
    world: MakeWorld, play: Callable[..., PlayedSpark]
) -> None:
    w, spark, end = read_one_record(world, play, "1s")
    spark.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not owners(w), what="released leases")
    # Whatever is still asked is answered, so that a micro-batch under way ends as it would have.
    assert spark.latest_offset(end) == end
    spark.commit(end)
    assert spark.process.poll() is None


def test_asked_to_end_it_serves_a_second_action_that_begins_after_a_pause(
    world: MakeWorld, play: Callable[..., PlayedSpark]
) -> None:
    w, spark, _ = read_one_record(world, play, "5s")
    (task,) = spark.tasks
    assert task.address is not None

    def action() -> list[bytes]:
        with FetcherClient(task.address, task.secret) as client:
            return [bytes(payload) for _, _, payloads in client.get(task.ranges) for payload in payloads]

    first = action()
    spark.process.send_signal(signal.SIGTERM)
    time.sleep(2.5)  # the driver works on what it has read
    assert action() == first != []
    assert len(owners(w)) == 1
    wait_until(lambda: not owners(w), what="released leases")


def test_the_end_of_the_connection_alone_releases_the_leases_and_ends_the_process(
    world: MakeWorld, play: Callable[..., PlayedSpark]
) -> None:
    w, spark, _ = read_one_record(world, play)
    spark.close()
    assert not owners(w)
    assert spark.process.returncode not in (None, -signal.SIGKILL)


def test_many_signals_at_once_end_it_as_one_does(world: MakeWorld, play: Callable[..., PlayedSpark]) -> None:
    w, spark, end = read_one_record(world, play, "1s")
    # Each may come while one before it is handled.
    for _ in range(3_000):
        spark.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not owners(w), what="released leases")
    assert spark.latest_offset(end) == end
    spark.close()
    assert spark.process.returncode not in (None, -signal.SIGKILL)


def test_a_signal_and_the_end_of_the_connection_at_once_release_the_leases(
    world: MakeWorld, play: Callable[..., PlayedSpark]
) -> None:
    w, spark, _ = read_one_record(world, play)
    spark.process.send_signal(signal.SIGTERM)
    spark.close()
    assert not owners(w)
