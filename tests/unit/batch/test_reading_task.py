"""Whole reads of a task with clients that answer at once: all shards, every client closed, one error of several."""

import asyncio
import base64
import json
import logging
import threading
import time
from dataclasses import replace
from hashlib import md5
from typing import Any

import pytest

from kinesis_efo.batch import reading
from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.batch.reading import Reading
from kinesis_efo.clock import SystemClock
from kinesis_efo.errors import AccessRefusedError
from kinesis_efo.options import AwsSettings, BatchOptions, SourceOptions
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, ShardKey
from kinesis_efo.raw_bodies import RAW_BODY
from tests.support.aggregates import aggregated
from tests.support.fake_clients import FakeClients
from tests.support.shared_runs import manifest
from tests.support.transports import refused

MANIFEST = manifest("orders")
RANGES = [BatchRange(ShardKey("orders", f"shardId-{n:012}"), (0, 9), TRIM_HORIZON, SHARD_END) for n in range(3)]
SOURCE = BatchOptions.parse({"manifest": "m.json"}).source
HASHES = {"StartingHashKey": "0", "EndingHashKey": "9"}
MIDDLE, LAST = (1 << 127) - 1, (1 << 128) - 1


def kinesis(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Three records in each shard, which ends with them."""
    if operation == "get_shard_iterator":
        return {"ShardIterator": arguments["ShardId"]}
    shard = arguments["ShardIterator"]
    records = [{"Data": "eA==", "PartitionKey": shard, "SequenceNumber": str(n)} for n in (10, 11, 12)]
    children = [{"ShardId": "c", "ParentShards": [shard], "HashKeyRange": HASHES}]
    return {RAW_BODY: json.dumps({"Records": records, "MillisBehindLatest": 0, "ChildShards": children}).encode()}


def denied(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    shard = arguments["ShardId"]
    raise refused("AccessDeniedException", f"no {shard}", operation="GetShardIterator")


def clients(monkeypatch: pytest.MonkeyPatch, answer: Any) -> FakeClients:
    made = FakeClients(SystemClock(), answer)
    monkeypatch.setattr(reading, "AsyncClients", made)
    return made


def is_over(made: FakeClients) -> bool:
    running = [thread.name for thread in threading.enumerate() if "kinesis-efo batch" in thread.name]
    return not running and not any(client.open for client in made.clients)


def test_all_shards_are_read_and_every_client_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = clients(monkeypatch, kinesis)
    caplog.set_level(logging.DEBUG, "kinesis_efo.batch")
    rows = [row for batch in Reading(RANGES, MANIFEST, SOURCE).batches() for row in batch["partitionKey"].to_pylist()]
    assert sorted(rows) == sorted(3 * [part.key.shard for part in RANGES])
    assert is_over(made)
    assert made.made == [(AwsSettings(role_session_name="kinesis-efo-lake"), "us-east-1")]
    assert len(made.clients) == 6, "a client for control and one for reading, for each shard"
    assert {call["ShardIteratorType"] for call in made.calls("get_shard_iterator")} == {"TRIM_HORIZON"}
    assert len([line for line in caplog.messages if "complete after" in line]) == 3


def endless(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One more record with each answer."""
    if operation == "get_shard_iterator":
        return {"ShardIterator": "0"}
    after = int(arguments["ShardIterator"])
    record = {"Data": "eA==", "PartitionKey": "k", "SequenceNumber": str(after + 1)}
    body = {"Records": [record], "MillisBehindLatest": 5_000, "NextShardIterator": str(after + 1)}
    return {RAW_BODY: json.dumps(body).encode()}


@pytest.mark.parametrize("shards", [1, 3])
def test_closed_read_stops_all_requests(
    shards: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kinesis_efo.batch")
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)
    made = clients(monkeypatch, endless)
    fast = BatchOptions.parse({"manifest": "m.json", "maxShardRate": "1g"}).source
    batches = Reading(RANGES[:shards], MANIFEST, fast).batches()
    next(batches)
    # One is taken, two are in line, and each shard waits with another.
    deadline = time.monotonic() + 10
    while len(made.calls("get_records")) < 3 + shards:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    closing = threading.Thread(target=batches.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive(), "it waits for ever"
    assert is_over(made)
    assert loop.is_closed()
    assert len(made.calls("get_records")) == 3 + shards
    assert "complete" not in caplog.text


@pytest.mark.parametrize("shards", [1, 3])
def test_cancelled_shard_ends_the_read_with_an_error(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group of tasks takes that for its end, with the other shards' rows alone."""

    def cancelled(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if operation == "get_records" and arguments["ShardIterator"] == RANGES[0].key.shard:
            raise asyncio.CancelledError
        return kinesis(operation, arguments)

    made = clients(monkeypatch, cancelled)
    with pytest.raises(asyncio.CancelledError):
        list(Reading(RANGES[:shards], MANIFEST, SOURCE).batches())
    assert is_over(made)


@pytest.mark.parametrize(
    ("hashes", "strict", "rows", "left"),
    [((0, MIDDLE), True, 0, 1), ((MIDDLE + 1, LAST), True, 3, 0), ((0, MIDDLE), False, 3, 0)],
)
def test_foreign_aggregates_are_left_out_and_counted(
    hashes: tuple[int, int], strict: bool, rows: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    [parcel] = aggregated(("b", b"%d" % number) for number in range(3))
    assert int.from_bytes(md5(b"b").digest()) > MIDDLE
    data = base64.b64encode(bytes(parcel["Data"])).decode()  # type: ignore[arg-type]

    def answer(operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if operation == "get_shard_iterator":
            return {"ShardIterator": "i"}
        record = {"Data": data, "PartitionKey": "a", "SequenceNumber": "10"}
        children = [{"ShardId": "c", "ParentShards": ["p"], "HashKeyRange": HASHES}]
        return {RAW_BODY: json.dumps({"Records": [record], "MillisBehindLatest": 0, "ChildShards": children}).encode()}

    def read(source: SourceOptions) -> tuple[int, list[tuple[ShardKey, int]]]:
        clients(monkeypatch, answer)
        told: list[tuple[ShardKey, int]] = []
        part = replace(RANGES[0], hash_range=hashes, strict=strict)
        batches = Reading([part], MANIFEST, source, left_out=lambda *each: told.append(each)).batches()
        return sum(batch.num_rows for batch in batches), told

    assert read(SOURCE) == (rows, [(RANGES[0].key, left)] if left else [])
    off = BatchOptions.parse({"manifest": "m.json", "deaggregate": "false"}).source
    assert read(off) == (1, []), "the aggregate itself"


def test_other_errors_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    clients(monkeypatch, denied)
    with pytest.raises(AccessRefusedError) as raised:
        list(Reading(RANGES, MANIFEST, SOURCE).batches())
    said = [str(raised.value), *caplog.messages]
    for part in RANGES:
        assert any(f"no {part.key.shard}" in each for each in said)
