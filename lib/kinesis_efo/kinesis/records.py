"""Decodes raw event payloads into Arrow batches of the source's columns. Runs in Spark's tasks.

msgspec decodes the JSON into one small struct per Kinesis record; everything after that works on columns.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
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
"""Most rows in a batch. Events are combined up to here: a batch of a few rows costs Spark as much as one of thousands."""

MIN_ROWS: Final = 100
"""Fewest rows in a batch, where the range has so many and `MAX_BYTES` allows them."""

CACHE_BYTES: Final = 2 << 20
"""A batch with at least `MIN_ROWS` is complete once its payloads have so many bytes: what fits into the processor's cache is
built a fifth faster."""

MAX_BYTES: Final = 8 << 20
"""A batch is complete once its payloads have so many bytes, however few its rows."""


_PAYS_OFF: Final = 512
"""Bytes of JSON per record above which pybase64 is faster than msgspec's own base64, although each record takes a call."""

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
    left_out: Callable[[ShardKey, int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode the rows of one shard's range.

    Args:
        payloads: Raw events of the shard, in order, that cover the range.
        key: The shard.
        after: Where the range starts, exclusive. What lies before is dropped; a start (`TRIM_HORIZON`, `AT_TIMESTAMP`)
            drops nothing. `INSIDE` drops the part of an aggregate that was done.
        through: Where it ends, inclusive. `SHARD_END` drops nothing. Reading stops at the first record behind it.
        deaggregate: Take KPL aggregates apart.
        hash_range: First and last hash key of the shard, to leave out aggregates with records that belong to another one.
        left_out: Called after a range with the number of those, where there were some; None: they are only logged.

    Yields:
        Batches of `SCHEMA` with 1 to `MAX_ROWS` rows. Rows ascend by sequence number; where an event was delivered twice,
        its records come once.

    Raises:
        FrameError: A payload is not an event with records.
    """
    cutter = _Cutter(key, after, through)
    builder = _BatchBuilder(key, hash_range, deaggregate=deaggregate)
    begun = after if after.kind is PositionKind.INSIDE else None
    for payload in payloads:
        records, data = cutter.cut(payload)
        if begun and records:
            # Reading starts at the record that was begun: it is the first one, where it is still there.
            if int(records[0].sequence_number) == begun.value:
                yield from builder.rest(records.pop(0), data.pop(0), begun.sub)
            begun = None
        if records:
            builder.add(records, data, len(payload))
            if builder.full:
                yield from builder.flush()
        if cutter.done:
            break
    yield from builder.flush()
    builder.report(left_out or _log_left_out)


class _Cutter:
    """Decodes events and keeps the records that lie in a range, ascending, each of them once.

    Attributes:
        done: Whether the last event reached the end of the range.
    """

    def __init__(self, key: ShardKey, after: Position, through: Position) -> None:
        self.done = False
        self._key = key
        number = after.sequence_number
        self._floor = -1 if number is None else number - (after.kind is PositionKind.INSIDE)
        self._ceiling = through.value if through.kind is PositionKind.AFTER else None
        self._large = False

    def cut(self, payload: bytes | memoryview) -> tuple[list[_Record[Any]], list[bytes]]:
        """The records of an event that lie in the range, and their data.

        Raises:
            FrameError: The payload is not an event with records.
        """
        large, ceiling = self._large, self._ceiling
        try:
            records: list[_Record[Any]] = (_LARGE if large else _SMALL).decode(payload).records
            if not records:
                return [], []
            self._large = len(payload) / len(records) > _PAYS_OFF
            last = int(records[-1].sequence_number)
            if _is_straight(records, self._floor) and (ceiling is None or last <= ceiling):
                self._floor = last
            else:
                records, self._floor = _cut(records, self._floor, ceiling)
            self.done = ceiling is not None and last >= ceiling
            # Positional: naming the arguments costs as much as decoding 500 bytes.
            if large:
                return records, [b64decode(record.data, None, True) for record in records]
            return records, [record.data for record in records]
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _undecodable(self._key, error) from None


def _is_straight(records: list[_Record[Any]], floor: int) -> bool:
    """Whether all records lie behind `floor` and ascend. Compares text, which is right for numbers of the same length."""
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


class _BatchBuilder:
    """Gathers records until they fill a batch, takes aggregates apart and builds the columns.

    Counts what the user should know of and says it once, in `report`.
    """

    def __init__(self, key: ShardKey, hash_range: tuple[int, int] | None, *, deaggregate: bool) -> None:
        self._key = key
        self._hash_range = hash_range
        self._deaggregate = deaggregate
        self._records: list[_Record[Any]] = []
        self._data: list[bytes] = []
        self._size = 0
        self._corrupt = 0
        self._foreign = 0

    def add(self, records: list[_Record[Any]], data: list[bytes], size: int) -> None:
        """Take records, their data, and the size of the payload they came in."""
        self._records += records
        self._data += data
        self._size += size

    @property
    def full(self) -> bool:
        """Whether there are enough records for a batch."""
        rows = len(self._records)
        return rows >= MAX_ROWS or self._size >= (CACHE_BYTES if rows >= MIN_ROWS else MAX_BYTES)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The batches of all records taken so far."""
        records, data = self._records, self._data
        if not records:
            return
        self._records, self._data, self._size = [], [], 0
        column = _binary(data)
        if self._deaggregate and pc.any(pc.starts_with(column, pattern=MAGIC)).as_py():
            yield from self._build(*self._take_apart(records, data))
        else:
            yield from self._build(records, column, None)

    def rest(self, record: _Record[Any], body: bytes, done: int) -> Iterator[pa.RecordBatch]:
        """What is left of a record whose user records were delivered up to `done`.

        Nothing is left of a record that is no aggregate: the KCL numbers it 0. With aggregates left whole, the whole record
        is delivered while any of it is left.
        """
        rows, bodies, subs = self._take_apart([record], [body])
        left = done + 1
        if self._deaggregate or not rows[left:]:
            yield from self._build(rows[left:], bodies[left:], subs[left:])
        else:
            yield from self._build([record], [body], [0])

    def report(self, left_out: Callable[[ShardKey, int], None]) -> None:
        """Say what was met in the range."""
        if self._corrupt:
            logger.warning(
                "%s: %d records begin like KPL aggregates but are none; passed on as they are", self._key, self._corrupt
            )
        if self._foreign:
            left_out(self._key, self._foreign)

    def _take_apart(
        self, records: list[_Record[Any]], data: list[bytes]
    ) -> tuple[list[_Record[Any]], list[bytes], list[int]]:
        """Records with aggregates replaced by what is in them: one record, its data and its sub-sequence number per row."""
        rows: list[_Record[Any]] = []
        bodies: list[bytes] = []
        subs: list[int] = []
        for record, body in zip(records, data, strict=True):
            inside = deaggregate_record(body, self._hash_range) if body.startswith(MAGIC) else None
            if inside is None:
                self._corrupt += body.startswith(MAGIC)
                rows.append(record)
                bodies.append(body)
                subs.append(0)
                continue
            self._foreign += not inside
            number, time = record.sequence_number, record.approximate_arrival_timestamp
            rows += [_Record(b"", number, time, user_record.partition_key) for user_record in inside]
            bodies += [user_record.data for user_record in inside]
            subs += range(len(inside))
        return rows, bodies, subs

    def _build(
        self, records: list[_Record[Any]], data: list[bytes] | pa.Array, subs: list[int] | None
    ) -> Iterator[pa.RecordBatch]:
        rows = len(data)
        column = _binary(data) if isinstance(data, list) else data
        # Batches of one size: 10,001 rows make two batches of 5,000 rather than one of a single row.
        batches = -(-rows // MAX_ROWS)
        for batch in range(batches):
            start, stop = batch * rows // batches, (batch + 1) * rows // batches
            some = records[start:stop]
            count = len(some)
            try:
                columns = [
                    column.slice(start, count),
                    _strings([record.partition_key for record in some]),
                    _strings([record.sequence_number for record in some]),
                    _repeated(_ZERO, count) if subs is None else _numbers("q", pa.int64(), subs[start:stop]),
                    _timestamps([record.approximate_arrival_timestamp for record in some]),
                    _repeated(_strings([self._key.stream]), count),
                    _repeated(_strings([self._key.shard]), count),
                ]
            except (pa.ArrowException, ValueError) as error:
                raise _undecodable(self._key, error) from None
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _log_left_out(key: ShardKey, aggregates: int) -> None:
    logger.warning("%s: %d KPL aggregates left out: hash keys of their records belong to other shards", key, aggregates)


def _undecodable(key: ShardKey, error: Exception) -> FrameError:
    return FrameError(f"an event of shard {key} cannot be decoded: {error}")


# pa.array() and pa.scalar() would import pandas where it is installed, which delays the first row of each worker by half a second.


def _binary(values: list[bytes]) -> pa.Array:
    return _joined(pa.binary(), map(len, values), len(values), b"".join(values))


def _strings(values: list[Any]) -> pa.Array:
    if None in values:
        return pa.array(values, pa.string())
    text = "".join(values)
    data = text.encode()
    # Nearly all are ASCII, with a byte per character.
    lengths = map(len, values if len(data) == len(text) else map(str.encode, values))
    return _joined(pa.string(), lengths, len(values), data)


def _joined(kind: pa.DataType, lengths: Iterable[int], count: int, data: bytes) -> pa.Array:
    offsets = array("i", accumulate(lengths, initial=0))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _repeated(one: pa.Array, count: int) -> pa.Array:
    return pa.repeat(one[0], count)


def _numbers(code: str, kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def _timestamps(seconds: list[float | None]) -> pa.Array:
    given = pa.array(seconds, pa.float64()) if None in seconds else _numbers("d", pa.float64(), seconds)
    # Kinesis sends milliseconds as decimals of a second; rounding removes the error of floating point.
    microseconds = pc.round(pc.multiply(given, _MILLION[0]))
    return microseconds.cast(pa.int64()).cast(SCHEMA.field("approximateArrivalTimestamp").type)


_ZERO: Final = _numbers("q", pa.int64(), [0])
_MILLION: Final = _numbers("d", pa.float64(), [1e6])
