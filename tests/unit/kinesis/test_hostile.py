"""Payloads that mean harm: refused as what they are, or read within bounds; never a crash, never memory out of proportion."""

from __future__ import annotations

import base64
import json
import tracemalloc
from hashlib import md5

import pytest

from kinesis_efo.errors import FrameError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, ShardKey
from kinesis_efo.records.aggregation import MAGIC, deaggregate
from kinesis_efo.records.batches import MAX_ROWS
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.events import read_answer, read_head
from tests.support.decoders import decoder as decoder

KEY = ShardKey("orders", "shardId-000000000000")
MIB = 1 << 20


def event(**fields: object) -> bytes:
    return json.dumps({"ContinuationSequenceNumber": "9", "MillisBehindLatest": 0, "Records": []} | fields).encode()


def record(data: bytes | str = b"x", number: object = "5", **fields: object) -> dict[str, object]:
    text = base64.b64encode(data).decode() if isinstance(data, bytes) else data
    return {"Data": text, "PartitionKey": "k", "SequenceNumber": number} | fields


def aggregate(message: bytes) -> bytes:
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


DEEP = b"[" * 200_000 + b"]" * 200_000
HEADS = {
    "deep, where nobody looks": event()[:-1] + b',"Extra":' + DEEP + b"}",
    "deep, in a record": event()[:-1] + b',"Records":[{"Extra":' + DEEP + b"}]}",
    "deep, never closed": b'{"Records":' + b"[" * 1_000_000,
    "deep objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "a lag of 400 digits": event()[:-1] + b',"MillisBehindLatest":' + b"9" * 400 + b"}",
    "a lag of a million digits": event()[:-1] + b',"MillisBehindLatest":' + b"9" * MIB + b"}",
    "a lag beyond floating point": event()[:-1] + b',"MillisBehindLatest":1e999}',
    "a lag that is none": event(MillisBehindLatest="soon"),
    "a continuation of a million digits": event(ContinuationSequenceNumber="9" * MIB),
    "a negative continuation": event(ContinuationSequenceNumber="-1"),
    "a continuation in other digits": event(ContinuationSequenceNumber="\u0664\u0662"),
    "a continuation as a number": event(ContinuationSequenceNumber=42),
    "records that are no list": event(Records={}),
    "records that are no objects": event(Records=[1, 2, 3]),
    "children that are none": event(ContinuationSequenceNumber=None, ChildShards=[{}]),
    "a child with a range of a million digits": event(
        ContinuationSequenceNumber=None,
        ChildShards=[
            {
                "ShardId": "c",
                "ParentShards": [],
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9" * MIB},
            }
        ],
    ),
    "bytes that are no UTF-8": b'{"ContinuationSequenceNumber":"\xff\xfe"}',
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("reader", [read_head, read_answer])
def test_a_hostile_event_is_an_error_of_a_few_hundred_characters(reader: object, name: str) -> None:
    with pytest.raises(FrameError) as caught:
        reader(HEADS[name])  # type: ignore[operator]
    assert len(str(caught.value)) < 700, "a payload must not flow into the log"


RECORDS = {
    "no base64": record("%%%"),
    "base64 cut off": record("eHh4eHh4e"),
    "half a character": record("eA=\u00e9"),
    "data as a number": record() | {"Data": 7},
    "no number": record(number="x"),
    "a number as a number": record(number=7),
    "a number of ten thousand digits": record(number="9" * 10_000),
    "a time beyond all calendars": record(ApproximateArrivalTimestamp=1e300),
    "a time that is none": record(ApproximateArrivalTimestamp="now"),
    "a key as a list": record(PartitionKey=["k"]),
}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("beside", [b"x", b"x" * 3000], ids=["small", "large"])
def test_a_hostile_record_fails_its_task_with_the_shard_named(name: str, beside: bytes) -> None:
    payloads = [event(Records=[record(beside, "1")]), event(Records=[record(beside, "2"), RECORDS[name]])]
    with pytest.raises(FrameError, match=f"an event of shard {KEY} cannot be decoded") as caught:
        list(decode(payloads, KEY, TRIM_HORIZON, SHARD_END, deaggregate=True))
    assert len(str(caught.value)) < 700


def test_bytes_that_are_not_utf_8_fail_their_task() -> None:
    payload = event(Records=[record(PartitionKey="KEY")]).replace(b"KEY", b"\xff\xfe")
    with pytest.raises(FrameError, match="cannot be decoded"):
        list(decode([payload], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True))


BOMBS = {
    "records of no bytes": b"\x0a\x01k" + b"\x1a\x04\x08\x00\x1a\x00" * 40_000,
    "records of no bytes with a long key": b"\x0a\x80\x02" + b"k" * 256 + b"\x1a\x04\x08\x00\x1a\x00" * 40_000,
    "keys that nobody uses": (b"\x0a\xff\x01" + b"k" * 255) * 1_000 + b"\x1a\x04\x08\x00\x1a\x00",
    "keys of nothing": b"\x0a\x00" * 120_000 + b"\x1a\x04\x08\x00\x1a\x00",
    "unknown fields": b"\x38\x01" * 120_000 + b"\x0a\x01k\x1a\x04\x08\x00\x1a\x00",
    "the key told again and again": b"\x0a\x01k\x1a\xc4\xb6\x0e" + b"\x08\x00" * 120_000 + b"\x1a\x02ab",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_an_aggregate_made_to_grow_grows_in_proportion(name: str) -> None:
    """There is nothing to decompress in an aggregate; the most that its bytes can stand for is a row for every six."""
    payload = event(Records=[record(aggregate(BOMBS[name]))])
    rows = 0
    # What is loaded once is no part of it.
    list(decode([event(Records=[record()])], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True))
    tracemalloc.start()
    try:
        for batch in decode([payload], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True, hash_range=(0, 2**128 - 1)):
            rows += batch.num_rows
            assert batch.num_rows <= MAX_ROWS
            del batch
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows * 6 <= len(BOMBS[name])
    assert peak < 48 * len(payload)


NOT_AGGREGATES = {
    "a length beyond the end": b"\x0a\xff\xff\xff\xff\x0fk",
    "a number that never ends": b"\x08" + b"\xff" * 100,
    "a number of 70 bits": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7fk",
    "a key that is not there": b"\x1a\x04\x08\x7f\x1a\x00",
    "a key index of 2**63": b"\x0a\x01k\x1a\x0d\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x1a\x00",
    "an explicit key that is not there": b"\x0a\x01k\x1a\x06\x08\x00\x10\x05\x1a\x00",
    "an explicit key that is no number": b"\x0a\x01k\x12\x01x\x1a\x06\x08\x00\x10\x00\x1a\x00",
    "a group, as long forgotten": b"\x0b\x0b\x0b\x0c",
    "a key that is no UTF-8": b"\x0a\x02\xff\xfe\x1a\x04\x08\x00\x1a\x00",
    "an aggregate's tail": b"\x1a",
}


@pytest.mark.parametrize("name", NOT_AGGREGATES)
def test_a_record_that_only_looks_like_an_aggregate_is_passed_on_unchanged(name: str) -> None:
    data = aggregate(NOT_AGGREGATES[name])
    assert deaggregate(data, (0, 2**128 - 1)) is None
    (batch,) = decode(
        [event(Records=[record(data)])], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True, hash_range=(0, 2**128 - 1)
    )
    assert batch.column("data").to_pylist() == [data]


def test_an_aggregate_inside_an_aggregate_is_taken_apart_once() -> None:
    inner = aggregate(b"\x0a\x01i\x1a\x05\x08\x00\x1a\x01x")
    outer = aggregate(b"\x0a\x01o\x1a" + bytes([len(inner) + 4]) + b"\x08\x00\x1a" + bytes([len(inner)]) + inner)
    (batch,) = decode([event(Records=[record(outer)])], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True)
    assert batch.column("data").to_pylist() == [inner]
