"""Plays Spark's part of the conversation with the process that it keeps for a reader: a real one closes the connection when it likes."""

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.serializers import (
    CPickleSerializer,
    SpecialLengths,
    UTF8Deserializer,
    read_int,
    write_int,
    write_with_length,
)
from pyspark.sql.streaming import python_streaming_source_runner as runner

from kinesis_efo.spark.partitions import KinesisPartition
from kinesis_efo.spark.source import SCHEMA, KinesisEfoSource
from tests.support.world import World

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
FEW_CERTIFICATES = {"SSL_CERT_FILE": str(Path(__file__).with_name("nobody.pem"))}
"""aiohttp reads the certificates of the world's authorities as it is imported: 50 ms of CPU for each process that Spark keeps."""

_SECRET = "of this test"


class ReaderFailed(Exception):
    """What the reader has raised, as Spark is told."""


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
                    **FEW_CERTIFICATES,
                    "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
                    "PYTHON_WORKER_FACTORY_SECRET": _SECRET,
                },
                stderr=subprocess.PIPE,
            )
            self.connection, _ = server.accept()
        self.tasks: list[KinesisPartition] = []
        self._reader = source.streamReader(SCHEMA)
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
        """As Spark asks for it: 4.2 and newer say how far they are, and the limits that they got."""
        ask = getattr(runner, "LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID", None)
        if ask is None:
            return self._call(runner.LATEST_OFFSET_FUNC_ID)
        return self._call(ask, json.dumps(start), json.dumps(self._call(runner.GET_DEFAULT_READ_LIMIT_FUNC_ID)))

    def plan(self, start: Any, end: Any) -> int:
        """As Spark plans a micro-batch; returns the number of its tasks."""
        self._send(runner.PARTITIONS_FUNC_ID, json.dumps(start), json.dumps(end))
        self.stream.flush()
        tasks = self._length()
        self.tasks = [pickle.loads(self.stream.read(read_int(self.stream))) for _ in range(tasks)]
        assert read_int(self.stream) == runner.PREFETCHED_RECORDS_NOT_FOUND
        return tasks

    def commit(self, end: Any) -> None:
        """As Spark says it."""
        self._send(runner.COMMIT_FUNC_ID, json.dumps(end))
        self.stream.flush()
        status = read_int(self.stream)
        assert status == 0, UTF8Deserializer().loads(self.stream)

    def rows(self) -> list[bytes]:
        """The data of the records that the tasks of the last micro-batch read."""
        batches = [batch for task in self.tasks for batch in self._reader.read(task)]
        return [data for batch in batches for data in batch.column("data").to_pylist()]

    def step(self, start: Any) -> tuple[Any, list[bytes]]:
        """One trigger: the offset after it, and what its micro-batch has read."""
        end = self.latest_offset(start)
        if end == start:
            return start, []
        self.plan(start, end)
        return end, self.rows()

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
        return json.loads(self.stream.read(self._length()))

    def _length(self) -> int:
        """The number that an answer begins with; an answer that is an error is raised."""
        length = read_int(self.stream)
        if length == SpecialLengths.PYTHON_EXCEPTION_THROWN:
            raise ReaderFailed(UTF8Deserializer().loads(self.stream))
        return length

    def _send(self, *values: str | int) -> None:
        for value in values:
            if isinstance(value, int):
                write_int(value, self.stream)
            else:
                write_with_length(value.encode(), self.stream)
