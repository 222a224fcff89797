"""The records that are read, put by a process of its own: as many as a backlog has at once, or a steady trickle."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.machine import CREDENTIALS

HEAD: Final = 17
"""Bytes in front of a record that say what it is."""
RECORD_BYTES: Final = 1024
STEADY_BYTES: Final = 200
STEADY_PER_SECOND: Final = 1_000
_STEADY_PER_CALL: Final = 10
_PER_CALL: Final = 256


def mark(number: int, shard: int) -> bytes:
    """The head of the last record of a backlog in a shard."""
    return b"end%06d-%07d" % (number, shard)


def put(pipe: Connection, endpoint: str) -> None:
    """Carry out what comes through a pipe, and say through it when it is done: ("backlog", ...) or ("steady", ...)."""
    import boto3

    os.environ.update(CREDENTIALS)
    client = boto3.client("kinesis", endpoint_url=endpoint, region_name="us-east-1")
    works: dict[str, Callable[..., int]] = {"backlog": _backlog, "steady": _steady}
    while True:
        kind, *arguments = pipe.recv()
        pipe.send(works[kind](client, *arguments))


def _backlog(client: Any, stream: str, shards: int, records: int, number: int) -> int:
    """Put so many records into each shard, and a mark behind them.

    Returns:
        The bytes of their data, without the marks.
    """
    data = b"-" + os.urandom(RECORD_BYTES - 1)
    for first in range(0, records, _PER_CALL):
        for shard in range(shards):
            _put(client, stream, [_to(shards, shard, data)] * min(_PER_CALL, records - first))
    _put(client, stream, [_to(shards, shard, mark(number, shard)) for shard in range(shards)])
    return RECORD_BYTES * records * shards


def _steady(client: Any, stream: str, seconds: float) -> int:
    """Put records at a steady rate, each with its time of sending in front.

    Returns:
        Their number.
    """
    pause = _STEADY_PER_CALL / STEADY_PER_SECOND
    began = due = time.monotonic()
    number = 0
    while due < began + seconds:
        data = b"%17.6f" % time.time() + bytes(STEADY_BYTES - HEAD)
        _put(client, stream, [{"PartitionKey": str(number + turn), "Data": data} for turn in range(_STEADY_PER_CALL)])
        number += _STEADY_PER_CALL
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
    return number


def _to(shards: int, shard: int, data: bytes) -> dict[str, Any]:
    return {"PartitionKey": "key", "ExplicitHashKey": str(2**128 * (2 * shard + 1) // (2 * shards)), "Data": data}


def _put(client: Any, stream: str, records: list[dict[str, Any]]) -> None:
    answer = client.put_records(StreamName=stream, Records=records)
    if answer["FailedRecordCount"]:
        raise RuntimeError(f"{answer['FailedRecordCount']} records were not taken")
