"""From raw event payloads to Arrow batches of the source's columns. Runs in Spark's tasks.

msgspec decodes the JSON into one small struct per Kinesis record; everything after that works on columns.
Relies on `aggregation` for KPL aggregates and pyarrow for the columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import lt
from typing import Any, Final, Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pybase64 import b64decode

from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.aggregation import MAGIC
from kinesis_efo.kinesis.aggregation import deaggregate as deaggregate_record
from kinesis_efo.positions import Position, PositionKind, ShardKey

logger = logging.getLogger(__name__)

SCHEMA: Final = pa.schema(
    [
        ("data", pa.binary()),
        ("partitionKey", pa.string()),
        ("sequenceNumber", pa.string()),
        ("subSequenceNumber", pa.int64()),
        ("approximateArrivalTimestamp", pa.timestamp("us", tz="UTC")),
        ("stream", pa.string()),
        ("shardId", pa.string()),
    ]
)
"""The columns of the source, in this order."""

MAX_ROWS: Final = 10_000
"""Most rows in a batch. Events are put together up to here: a batch of a few rows costs Spark as much as one of thousands."""

MIN_ROWS: Final = 100
"""A batch has at least so many rows, where the range has them and `MAX_BYTES` allows."""

CACHE_BYTES: Final = 2 << 20
"""A batch with enough rows is handed on once it was made from so many bytes of payload: what fits into the processor's cache
is built a fifth faster."""

MAX_BYTES: Final = 8 << 20
"""A batch is handed on once it was made from so many bytes of payload, however few its rows."""


_PAYS_OFF: Final = 512
"""Bytes of JSON per record above which pybase64 is faster than msgspec's own base64, in spite of what a call costs."""

Data = TypeVar("Data", bytes, str)


class _Record(msgspec.Struct, Generic[Data], rename="pascal", gc=False):
    data: Data
    sequence_number: str
    approximate_arrival_timestamp: float | None = None
    partition_key: str | None = None


class _Payload(msgspec.Struct, Generic[Data], rename="pascal", gc=False):
    records: list[_Record[Data]] = []


_SMALL: Final = msgspec.json.Decoder(_Payload[bytes])
_LARGE: Final = msgspec.json.Decoder(_Payload[str])


def decode(
    payloads: Iterable[bytes | memoryview],
    key: ShardKey,
    after: Position,
    through: Position,
    *,
    deaggregate: bool,
    hash_range: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of one shard's range.

    Args:
        payloads: Raw events of the shard, in order, that cover the range.
        key: The shard.
        after: Where the range starts, exclusive. What lies before is dropped; a start (`TRIM_HORIZON`, `AT_TIMESTAMP`)
            drops nothing. After `INSIDE`, what that says was done of an aggregate is dropped.
        through: Where it ends, inclusive. `SHARD_END` drops nothing. Reading stops at the first record behind it.
        deaggregate: Take KPL aggregates apart.
        hash_range: First and last hash key of the shard, to drop aggregates that belong to another one.

    Yields:
        Batches of `SCHEMA` with 1 to `MAX_ROWS` rows. Rows ascend by sequence number; one that came before, because an event
        was delivered twice, is left out.

    Raises:
        FrameError: A payload is not an event with records.
    """
    floor = after.value if after.kind is PositionKind.AFTER else -1
    begun = after if after.kind is PositionKind.INSIDE else None
    floor = after.value - 1 if begun else floor
    tally = _Tally(key)
    ceiling = through.value if through.kind is PositionKind.AFTER else None
    pending: list[_Record[Any]] = []
    data: list[bytes] = []
    size = 0
    large = False
    for payload in payloads:
        try:
            records: list[_Record[Any]] = (_LARGE if large else _SMALL).decode(payload).records
            if not records:
                continue
            average = len(payload) / len(records)
            last = int(records[-1].sequence_number)
            if _is_straight(records, floor) and (ceiling is None or last <= ceiling):
                floor = last
            else:
                records, floor = _cut(records, floor, ceiling)
            # Positional: naming the arguments costs as much as decoding 500 bytes.
            data += (
                [b64decode(record.data, None, True) for record in records]
                if large
                else [record.data for record in records]
            )
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise FrameError(f"an event of shard {key} cannot be decoded: {error}") from None
        if begun and records:
            # The first record there is, since reading starts at it.
            if int(records[0].sequence_number) == begun.value:
                rows = _rest(records.pop(0), data.pop(0), begun.sub, deaggregate, hash_range, tally)
                yield from _pieces(*rows, key)
            begun = None
        large = average > _PAYS_OFF
        pending += records
        size += len(payload)
        if len(pending) >= MAX_ROWS or size >= (CACHE_BYTES if len(pending) >= MIN_ROWS else MAX_BYTES):
            yield from _batches(pending, data, key, deaggregate, hash_range, tally)
            pending, data, size = [], [], 0
        if ceiling is not None and last >= ceiling:
            break
    if pending:
        yield from _batches(pending, data, key, deaggregate, hash_range, tally)
    tally.report()


def _is_straight(records: list[_Record[Any]], floor: int) -> bool:
    """Whether all records lie behind `floor` and ascend. Compares as text, which is right for numbers of one length."""
    numbers = [record.sequence_number for record in records]
    return (
        int(numbers[0]) > floor
        and all(map(lt, numbers, islice(numbers, 1, None)))
        and (len(set(map(len, numbers))) == 1)
    )


def _cut(records: list[_Record[Any]], floor: int, ceiling: int | None) -> tuple[list[_Record[Any]], int]:
    kept = []
    for record in records:
        number = int(record.sequence_number)
        if number <= floor:
            continue
        if ceiling is not None and number > ceiling:
            break
        kept.append(record)
        floor = number
    return kept, floor


class _Tally:
    """What was met in one range that the user should know of, said once at its end."""

    def __init__(self, key: ShardKey) -> None:
        self._key = key
        self.corrupt = self.foreign = 0

    def report(self) -> None:
        if self.corrupt:
            logger.warning(
                "%s: %d records begin like KPL aggregates but are none; passed on as they are", self._key, self.corrupt
            )
        if self.foreign:
            logger.info(
                "%s: %d KPL aggregates left out: after a reshard they belong to other shards", self._key, self.foreign
            )


def _batches(
    records: list[_Record[Any]],
    data: list[bytes],
    key: ShardKey,
    apart: bool,
    hash_range: tuple[int, int] | None,
    tally: _Tally,
) -> Iterator[pa.RecordBatch]:
    column = pa.array(data, pa.binary())
    if apart and pc.any(pc.starts_with(column, pattern=MAGIC)).as_py():
        yield from _pieces(*_take_apart(records, data, hash_range, tally), key)
    else:
        yield from _pieces(records, column, None, key)


def _pieces(
    records: list[_Record[Any]], data: list[bytes] | pa.Array, subs: list[int] | None, key: ShardKey
) -> Iterator[pa.RecordBatch]:
    rows = len(data)
    column = pa.array(data, pa.binary()) if isinstance(data, list) else data
    # Pieces of one size: 10,001 rows make two batches of 5,000 rather than one of a single row.
    pieces = -(-rows // MAX_ROWS)
    for piece in range(pieces):
        start, stop = piece * rows // pieces, (piece + 1) * rows // pieces
        some = records[start:stop]
        count = len(some)
        try:
            columns = [
                column.slice(start, count),
                pa.array([record.partition_key for record in some], pa.string()),
                pa.array([record.sequence_number for record in some], pa.string()),
                pa.repeat(0, count) if subs is None else pa.array(subs[start:stop], pa.int64()),
                _timestamps([record.approximate_arrival_timestamp for record in some]),
                pa.repeat(key.stream, count),
                pa.repeat(key.shard, count),
            ]
        except (pa.ArrowException, ValueError) as error:
            raise FrameError(f"an event of shard {key} cannot be decoded: {error}") from None
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _timestamps(seconds: list[float | None]) -> pa.Array:
    # Kinesis gives milliseconds as decimals of a second; rounding undoes what floating point did to them.
    microseconds = pc.round(pc.multiply(pa.array(seconds, pa.float64()), 1e6))
    return microseconds.cast(pa.int64()).cast(SCHEMA.field("approximateArrivalTimestamp").type)


def _take_apart(
    records: list[_Record[Any]], data: list[bytes], hash_range: tuple[int, int] | None, tally: _Tally
) -> tuple[list[_Record[Any]], list[bytes], list[int]]:
    """Records with aggregates replaced by what is in them: one record, its data and its sub-sequence number per row."""
    rows: list[_Record[Any]] = []
    bodies: list[bytes] = []
    subs: list[int] = []
    for record, body in zip(records, data, strict=True):
        inside = deaggregate_record(body, hash_range) if body.startswith(MAGIC) else None
        if inside is None:
            tally.corrupt += body.startswith(MAGIC)
            rows.append(record)
            bodies.append(body)
            subs.append(0)
            continue
        tally.foreign += not inside
        number, time = record.sequence_number, record.approximate_arrival_timestamp
        rows += [_Record(b"", number, time, user_record.partition_key) for user_record in inside]
        bodies += [user_record.data for user_record in inside]
        subs += range(len(inside))
    return rows, bodies, subs


def _rest(
    record: _Record[Any],
    body: bytes,
    done: int,
    apart: bool,
    hash_range: tuple[int, int] | None,
    tally: _Tally,
) -> tuple[list[_Record[Any]], list[bytes], list[int]]:
    """What is left of a record whose user records were delivered up to `done`, as `_take_apart` gives it.

    Of one that is no aggregate nothing is left: the KCL numbers it 0. One that stays whole comes whole while anything is left.
    """
    rows, bodies, subs = _take_apart([record], [body], hash_range, tally)
    left = done + 1
    if apart or not rows[left:]:
        return rows[left:], bodies[left:], subs[left:]
    return [record], [body], [0]
