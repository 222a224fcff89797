"""Builds Arrow batches with the source's columns from records. Shards with few records share a batch."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kinesis_efo.errors import FrameError
from kinesis_efo.positions import ShardKey
from kinesis_efo.records.aggregation import MAGIC
from kinesis_efo.records.aggregation import deaggregate as deaggregate_record

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
"""Maximum rows of a batch. Several events share a batch up to this size: a batch of few rows costs Spark as much as thousands of rows."""

MIN_ROWS: Final = 100
"""A batch with fewer rows is only complete once its payloads reach `MAX_BYTES`, or at the end of a task."""

CACHE_BYTES: Final = 2 << 20
"""A batch with at least `MIN_ROWS` rows is complete once its payloads reach this size in bytes. It then fits into the processor's cache,
which makes building it a fifth faster."""

MAX_BYTES: Final = 8 << 20
"""A batch is complete once its payloads reach this size in bytes, even if it has few rows."""

T = TypeVar("T")
Data = TypeVar("Data", bytes, str)


class KinesisRecord(msgspec.Struct, Generic[Data], rename="pascal", gc=False):
    """A Kinesis record as received. `data` is the base64 string or the decoded bytes."""

    data: Data
    sequence_number: str
    approximate_arrival_timestamp: float | None = None
    partition_key: str | None = None


class ShardRows(NamedTuple):
    """Records of one shard, in order, and the data of each record. Once aggregates are split, each record is one row.

    `hash_range` is the first and last hash key of the shard: aggregates with records of other shards are dropped. None disables dropping.
    """

    key: ShardKey
    hash_range: tuple[int, int] | None
    records: list[KinesisRecord[Any]]
    data: list[bytes]


def is_full(rows: int, size: int) -> bool:
    """Whether a batch with `rows` rows, from payloads of `size` bytes, is complete."""
    return rows >= MAX_ROWS or size >= (CACHE_BYTES if rows >= MIN_ROWS else MAX_BYTES)


def even_parts(rows: int) -> Iterator[tuple[int, int]]:
    """Split rows into batches of about equal size. Yields the index of each batch's first row, and the index after its last row.

    >>> list(even_parts(10_001))
    [(0, 5000), (5000, 10001)]
    """
    batches = -(-rows // MAX_ROWS)
    for batch in range(batches):
        yield batch * rows // batches, (batch + 1) * rows // batches


class BatchBuilder:
    """Collects records and converts them to Arrow record batches. Splits aggregates; counts corrupt and dropped aggregates for `report`."""

    def __init__(self, *, deaggregate: bool) -> None:
        self._deaggregate = deaggregate
        self._runs: list[ShardRows] = []
        self._run: ShardRows
        self._rows = 0
        self._size = 0
        self._corrupt: Counter[ShardKey] = Counter()
        self._foreign: Counter[ShardKey] = Counter()

    def begin(self, key: ShardKey, hash_range: tuple[int, int] | None) -> None:
        """Begin a range of the shard `key`. Records that are added from now on belong to it."""
        self._run = ShardRows(key, hash_range, [], [])

    def add(self, records: list[KinesisRecord[Any]], data: list[bytes], size: int) -> None:
        """Add the records of a payload, and their data. `size` is the size of the payload in bytes."""
        if not self._run.records:
            self._runs.append(self._run)
        self._run.records.extend(records)
        self._run.data.extend(data)
        self._rows += len(records)
        self._size += size

    @property
    def full(self) -> bool:
        """Whether the added records fill a batch."""
        return is_full(self._rows, self._size)

    @property
    def empty(self) -> bool:
        """Whether no records were added since the last `flush`."""
        return not self._runs

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of all records that were added since the last `flush`."""
        runs = self._runs
        if not runs:
            return
        self._runs, self._rows, self._size = [], 0, 0
        self.begin(runs[-1].key, runs[-1].hash_range)
        column = _binary(_joined_lists([run.data for run in runs]))
        if self._deaggregate and pc.any(pc.starts_with(column, pattern=MAGIC)).as_py():
            apart = [self._take_apart(run) for run in runs]
            runs, subs = [run for run, _ in apart], _joined_lists([inside for _, inside in apart])
            yield from _built(runs, _binary(_joined_lists([run.data for run in runs])), subs)
        else:
            yield from _built(runs, column, None)

    def rest(self, record: KinesisRecord[Any], body: bytes, done: int) -> Iterator[pa.RecordBatch]:
        """Yield a batch of an aggregate's user records after sub-sequence number `done`, if there are any.

        A record that is not an aggregate counts as a single user record with number 0, as in the KCL. If aggregates are not split, yields
        the whole aggregate as one row, provided that user records remain.
        """
        whole = self._run._replace(records=[record], data=[body])
        (key, hash_range, rows, bodies), subs = self._take_apart(whole)
        left = done + 1
        if self._deaggregate or not rows[left:]:
            yield from _built(
                [ShardRows(key, hash_range, rows[left:], bodies[left:])], _binary(bodies[left:]), subs[left:]
            )
        else:
            yield from _built([whole], _binary([body]), None)

    def report(self, left_out: Callable[[ShardKey, int], None]) -> None:
        """Log the number of corrupt aggregates. Call `left_out` with each shard that has dropped aggregates, and the number dropped."""
        for key, corrupt in self._corrupt.items():
            logger.warning(
                "%s: %d records look like KPL aggregates but are corrupt; passed on as they are", key, corrupt
            )
        for key, foreign in self._foreign.items():
            left_out(key, foreign)

    def _take_apart(self, run: ShardRows) -> tuple[ShardRows, list[int]]:
        """Replace aggregates with their user records. Return the resulting rows, and the rows' sub-sequence numbers."""
        rows: list[KinesisRecord[Any]] = []
        bodies: list[bytes] = []
        subs: list[int] = []
        for record, body in zip(run.records, run.data, strict=True):
            inside = deaggregate_record(body, run.hash_range) if body.startswith(MAGIC) else None
            if inside is None:
                if body.startswith(MAGIC):
                    self._corrupt[run.key] += 1
                rows.append(record)
                bodies.append(body)
                subs.append(0)
                continue
            if not inside and deaggregate_record(body, None):  # an aggregate without records does not count as dropped
                self._foreign[run.key] += 1
            number, time = record.sequence_number, record.approximate_arrival_timestamp
            rows += [KinesisRecord(b"", number, time, user_record.partition_key) for user_record in inside]
            bodies += [user_record.data for user_record in inside]
            subs += range(len(inside))
        return ShardRows(run.key, run.hash_range, rows, bodies), subs


def _built(runs: list[ShardRows], data: pa.Array, subs: list[int] | None) -> Iterator[pa.RecordBatch]:
    """Build batches from the rows of one or more shards. `data` and `subs` are the rows' data and sub-sequence numbers (None: all 0)."""
    records = _joined_lists([run.records for run in runs])
    streams, shards = _shards(runs)
    for start, stop in even_parts(len(data)):
        some = records[start:stop]
        count = len(some)
        try:
            columns = [
                data.slice(start, count),
                _strings([record.partition_key for record in some]),
                _strings([record.sequence_number for record in some]),
                pa.repeat(_ZERO[0], count) if subs is None else _numbers("q", pa.int64(), subs[start:stop]),
                _timestamps([record.approximate_arrival_timestamp for record in some]),
                streams.slice(start, count),
                shards.slice(start, count),
            ]
        except (pa.ArrowException, ValueError) as error:
            raise undecodable(_culprit(runs), error) from None
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _shards(runs: list[ShardRows]) -> tuple[pa.Array, pa.Array]:
    streams, shards = _strings([run.key.stream for run in runs]), _strings([run.key.shard for run in runs])
    if len(runs) == 1:
        rows = len(runs[0].records)
        return pa.repeat(streams[0], rows), pa.repeat(shards[0], rows)
    of_rows = _numbers("i", pa.int32(), [number for number, run in enumerate(runs) for _ in run.records])
    return streams.take(of_rows), shards.take(of_rows)


def _culprit(runs: list[ShardRows]) -> ShardKey:
    for run in runs[:-1]:
        try:
            list(_built([run], _binary(run.data), None))
        except FrameError:
            return run.key
    return runs[-1].key


def _joined_lists(lists: list[list[T]]) -> list[T]:
    return lists[0] if len(lists) == 1 else [each for some in lists for each in some]


def undecodable(key: ShardKey, error: Exception) -> FrameError:
    """Create the error for an event that cannot be decoded."""
    return FrameError(f"an event of shard {key} cannot be decoded: {error}")


# The functions below avoid pa.array() and pa.scalar(), which import pandas, if installed. That takes half a second per new worker.


def _binary(values: list[bytes]) -> pa.Array:
    return _joined(pa.binary(), map(len, values), len(values), b"".join(values))


def _strings(values: list[Any]) -> pa.Array:
    if None in values:
        return pa.array(values, pa.string())
    text = "".join(values)
    data = text.encode()
    # If all strings are ASCII, each character is one byte, so their lengths in characters are also their lengths in bytes.
    lengths = map(len, values if len(data) == len(text) else map(str.encode, values))
    return _joined(pa.string(), lengths, len(values), data)


def _joined(kind: pa.DataType, lengths: Iterable[int], count: int, data: bytes) -> pa.Array:
    offsets = array("i", accumulate(lengths, initial=0))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _numbers(code: str, kind: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def _timestamps(seconds: list[float | None]) -> pa.Array:
    given = pa.array(seconds, pa.float64()) if None in seconds else _numbers("d", pa.float64(), seconds)
    # Kinesis sends seconds with three decimals. Round to remove floating-point errors.
    microseconds = pc.round(pc.multiply(given, _MILLION[0]))
    return microseconds.cast(pa.int64()).cast(SCHEMA.field("approximateArrivalTimestamp").type)


_ZERO: Final = _numbers("q", pa.int64(), [0])
_MILLION: Final = _numbers("d", pa.float64(), [1e6])
