"""Decoding: exactly the rows of the range, in the columns Spark expects, in batches of a useful size."""

import base64
import logging
import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import FrameError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records import decoder as module
from kinesis_efo.records.aggregation import MAGIC
from kinesis_efo.records.batches import MAX_BYTES, MAX_ROWS, MIN_ROWS, SCHEMA
from kinesis_efo.records.decoder import decode
from tests.support.decoders import DEEP, TOO_DEEP
from tests.support.decoders import decoder as decoder
from tests.unit.records.test_aggregation import sealed

KEY = ShardKey("orders", "shardId-000000000003")
BASE = 49590338271490256608559692538361571095921575989136588898


def record(number: int, data: bytes = b"x", **fields: Any) -> dict[str, Any]:
    return {
        "SequenceNumber": str(number),
        "Data": base64.b64encode(data).decode(),
        "PartitionKey": f"key-{number}",
        "ApproximateArrivalTimestamp": 1700000000.123,
        "EncryptionType": "NONE",
        **fields,
    }


def event(*records: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"ContinuationSequenceNumber": "1", "MillisBehindLatest": 0, "Records": records})


def rows(
    payloads: list[bytes],
    after: Position = TRIM_HORIZON,
    through: Position = SHARD_END,
    *,
    apart: bool = True,
    hash_range: tuple[int, int] | None = None,
) -> list[dict[str, Any]]:
    batches = list(decode(payloads, KEY, after, through, deaggregate=apart, hash_range=hash_range))
    for batch in batches:
        assert batch.schema.equals(SCHEMA, check_metadata=True)
        assert 0 < batch.num_rows <= MAX_ROWS
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


def numbers(*arguments: Any, **options: Any) -> list[int]:
    return [int(row["sequenceNumber"]) for row in rows(*arguments, **options)]


def test_a_row_has_everything_of_its_record() -> None:
    assert rows([event(record(BASE, b"\x00\xff"))]) == [
        {
            "data": b"\x00\xff",
            "partitionKey": f"key-{BASE}",
            "sequenceNumber": str(BASE),
            "subSequenceNumber": 0,
            "approximateArrivalTimestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
            "stream": "orders",
            "shardId": "shardId-000000000003",
        }
    ]


@given(st.integers(0, 4102444800000))
def test_timestamps_keep_their_milliseconds(epoch_ms: int) -> None:
    (row,) = rows([event(record(1, ApproximateArrivalTimestamp=epoch_ms / 1000))])
    assert row["approximateArrivalTimestamp"] == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)


def test_optional_fields_that_are_missing_are_null() -> None:
    (row,) = rows([event({"SequenceNumber": "7", "Data": ""})])
    assert (row["data"], row["partitionKey"], row["approximateArrivalTimestamp"]) == (b"", None, None)
    (row,) = rows([event(record(7, ApproximateArrivalTimestamp=1700000000, PartitionKey=None))])
    assert row["partitionKey"] is None
    assert row["approximateArrivalTimestamp"].microsecond == 0


@pytest.mark.parametrize("size", [0, 1, 2, 3, 400, 2000, 10 << 20])
def test_data_of_every_size(size: int) -> None:
    # Twice, since how base64 is decoded depends on the event before.
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert [row["data"] == data for row in rows([event(record(1, data)), event(record(2, data))])] == [True, True]


def test_escapes_in_json_strings() -> None:
    data = b"\xff\xfe\xfd" * 500
    text = base64.b64encode(data)
    assert b"/" in text
    for width in (3, 1500):
        slashed = event(record(1, data[:width]), record(2, data[:width])).replace(b"/", b"\\/")
        assert [row["data"] for row in rows([slashed, slashed.replace(b'"1"', b'"3"').replace(b'"2"', b'"4"')])] == [
            data[:width]
        ] * 4


EVENTS = [event(*(record(number) for number in range(start, start + 5))) for start in (10, 15, 20)]


# Shows 50.
@pytest.mark.parametrize(
    ("after", "through", "expected"),
    [
        (TRIM_HORIZON, SHARD_END, range(10, 25)),
        (Position.at_timestamp(1), SHARD_END, range(10, 25)),
        (Position.after(9), Position.after(24), range(10, 25)),
        (Position.after(12), Position.after(17), range(13, 18)),
        (Position.after(14), Position.after(19), range(15, 20)),
        (Position.after(10), Position.after(10), range(0)),
        (Position.after(11), Position.after(12), range(12, 13)),
        (Position.after(24), SHARD_END, range(0)),
        (Position.after(10**60), SHARD_END, range(0)),
        (TRIM_HORIZON, Position.after(9), range(0)),
        (TRIM_HORIZON, Position.after(22), range(10, 23)),
    ],
)
def test_only_the_range_comes_out(after: Position, through: Position, expected: range) -> None:
    assert numbers(EVENTS, after, through) == list(expected)


# Shows 45, invariant 3.
@given(st.sets(st.integers(0, 10**60), min_size=1, max_size=60), st.data())
def test_ranges_tile_a_shard_whatever_the_events(found: set[int], data: st.DataObject) -> None:
    """Whichever events cover a range, and wherever ranges meet: every record is in exactly one of them."""
    ordered = sorted(found)
    events = []
    left = ordered
    while left:
        count = data.draw(st.integers(1, len(left)))
        events.append(event(*(record(number) for number in left[:count])))
        left = left[count:]
    cuts = [Position.after(cut) for cut in sorted(data.draw(st.sets(st.integers(-1, 10**60), max_size=5)))]
    edges = [TRIM_HORIZON, *cuts, SHARD_END]
    parts = [numbers(events, after, through) for after, through in pairwise(edges)]
    assert [number for part in parts for number in part] == ordered


def test_repeated_event_does_not_double_its_rows() -> None:
    assert numbers([EVENTS[0], EVENTS[0], EVENTS[1], EVENTS[0], EVENTS[2]]) == list(range(10, 25))
    overlap = event(*(record(number) for number in (13, 14, 14, 15, 16)))
    assert numbers([EVENTS[0], overlap, EVENTS[1]]) == list(range(10, 20))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1_000, 30_000, 500_000])
def test_batches_are_bounded_in_bytes(size: int) -> None:
    events = [event(record(10**6 + number, bytes(size))) for number in range(30_000_000 // size)]
    batches = list(decode(events, KEY, TRIM_HORIZON, SHARD_END, deaggregate=True))
    assert sum(batch.num_rows for batch in batches) == len(events)
    for batch in batches:
        assert batch.nbytes <= MAX_BYTES + 2 * size
    for batch in batches[:-1]:
        assert batch.num_rows >= MIN_ROWS or batch.nbytes > MAX_BYTES // 2


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "truncated"),
        (b"[1]", "Expected `object`"),
        (event(record(1))[:-2], "truncated"),
        (event({"SequenceNumber": "1"}), "missing required field `Data`"),
        (event({"Data": ""}), "missing required field `SequenceNumber`"),
        (event(record(1, SequenceNumber="x")), "invalid literal"),
        (event(record(1, SequenceNumber="1" * 5000)), "4300"),
        (event(record(1, ApproximateArrivalTimestamp="now")), "Expected `float"),
        (event(record(1, ApproximateArrivalTimestamp=1e300)), "out of bounds|truncated|range"),
        (event(record(1, PartitionKey=5)), "Expected `str"),
        (event(record(1)).replace(b"key-1", b"\xff\xfe"), "(?i:utf-8)"),
        (event(record(1, Data="!!!!")), "base64"),
        (event(record(1, Data="abc")), "base64"),
        (event(record(1, Data="eA=\u00e9")), "base64"),
        (event(record(1, Data=7)), "Expected `bytes"),
        (event(record(1), record(2, b"x" * 3000), record(3, Data="!" * 2000)), "base64"),
        (b'{"x":' + b"[" * DEEP, TOO_DEEP),
    ],
)
def test_error_of_a_broken_payload_names_the_shard(payload: bytes, message: str) -> None:
    with pytest.raises(
        FrameError, match=f"an event of shard orders:shardId-000000000003 cannot be decoded: .*({message})"
    ) as caught:
        rows([payload])
    assert len(str(caught.value)) < 700, "a payload must not flow into the log"


def aggregate(*keys: str, hash_key: str | None = None) -> bytes:
    aggregator = RecordAggregator()
    for key in keys:
        aggregator.add_user_record(key, key.encode() * 3, hash_key)
    return bytes(aggregator.clear_and_get().get_contents()[2])


def test_aggregates_are_split_between_plain_records() -> None:
    found = rows([event(record(1), record(2, aggregate("a", "b", "c")), record(3, PartitionKey=None))])
    assert [(row["sequenceNumber"], row["subSequenceNumber"], row["partitionKey"], row["data"]) for row in found] == [
        ("1", 0, "key-1", b"x"),
        ("2", 0, "a", b"aaa"),
        ("2", 1, "b", b"bbb"),
        ("2", 2, "c", b"ccc"),
        ("3", 0, None, b"x"),
    ]
    assert len({row["approximateArrivalTimestamp"] for row in found}) == 1


# Shows 47.
def test_aggregates_of_other_shards_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    mine, other = aggregate("a", hash_key="5"), aggregate("b", "c", hash_key="50")
    caplog.set_level(logging.INFO, module.__name__)
    found = rows([event(record(1, mine), record(2, other))], hash_range=(0, 9))
    assert [row["partitionKey"] for row in found] == ["a"]
    assert [message.message for message in caplog.records] == [
        "orders:shardId-000000000003: 1 KPL aggregates dropped: hash keys of their records belong to other shards"
    ]
    noted: list[tuple[ShardKey, int]] = []
    events = [event(record(2, other)), event(record(3, other))]
    left = decode(
        events,
        KEY,
        TRIM_HORIZON,
        SHARD_END,
        deaggregate=True,
        hash_range=(0, 9),
        left_out=lambda *note: noted.append(note),
    )
    assert list(left) == []
    assert noted == [(KEY, 2)]


def test_aggregate_without_records_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    empty = sealed(b"\x0a\x01k")  # the table of partition keys, with one key
    caplog.set_level(logging.INFO, module.__name__)
    assert rows([event(record(1, empty))], hash_range=(0, 9)) == []
    assert caplog.messages == []


# Shows 50.
def test_broken_aggregates_are_delivered_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    broken = [MAGIC + bytes(30), aggregate("a")[:-1] + b"!", MAGIC]
    found = rows([event(*(record(number, data) for number, data in enumerate(broken)))])
    assert [row["data"] for row in found] == broken
    assert [(line.levelname, line.message) for line in caplog.records] == [
        (
            "WARNING",
            "orders:shardId-000000000003: 3 records look like KPL aggregates but are corrupt; passed on as they are",
        )
    ]


def inside(sub: int, *records: dict[str, Any], apart: bool = True, **options: Any) -> list[tuple[int, int, str | None]]:
    """Rows behind user record `sub` of record 5."""
    batches = decode(
        [event(*records[:1]), event(*records[1:])],
        KEY,
        Position.inside(5, sub),
        SHARD_END,
        deaggregate=apart,
        **options,
    )
    return [
        (int(row["sequenceNumber"]), row["subSequenceNumber"], row["partitionKey"])
        for batch in batches
        for row in batch.to_pylist()
    ]


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 3))
def test_processed_and_delivered_parts_make_the_aggregate(count: int, sub: int, before: int) -> None:
    data = aggregate(*map(str, range(count)))
    records = [*(record(number) for number in range(5 - before, 5)), record(5, data), record(6)]
    found = [row[1] for row in inside(sub, *records) if row[0] == 5]
    assert [*range(min(sub + 1, count)), *found] == [*range(count)]


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
def test_aggregate_made_to_grow_grows_in_proportion(name: str) -> None:
    """There is nothing to decompress in an aggregate; the most that its bytes can stand for is a row for every six."""
    payload = event(record(1, sealed(BOMBS[name])))
    rows = 0
    # What is loaded once is no part of it.
    list(decode([event(record(1))], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True))
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


def test_aggregate_inside_an_aggregate_is_split_once() -> None:
    inner = sealed(b"\x0a\x01i\x1a\x05\x08\x00\x1a\x01x")
    outer = sealed(b"\x0a\x01o\x1a" + bytes([len(inner) + 4]) + b"\x08\x00\x1a" + bytes([len(inner)]) + inner)
    (batch,) = decode([event(record(1, outer))], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True)
    assert batch.column("data").to_pylist() == [inner]
