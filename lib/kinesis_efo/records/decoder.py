"""Decodes raw event payloads into Arrow batches of the source's columns. Runs in Spark's tasks.

msgspec decodes the JSON into one small struct per Kinesis record; everything after that works on columns. If the native core is installed, it
decodes most events instead, with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

import msgspec
import pyarrow as pa
from pybase64 import b64decode

from kinesis_efo.positions import Position, PositionKind, ShardKey
from kinesis_efo.records.batches import BatchBuilder, Data, KinesisRecord, even_parts, is_full, undecodable
from kinesis_efo.records.core import new_batch

if TYPE_CHECKING:
    from kinesis_efo_core import Batch

logger = logging.getLogger(__name__)

_PAYS_OFF: Final = 512
"""If an event has more bytes of JSON per record than this, pybase64 (called for each record) is faster than msgspec's base64 decoder."""


class _EventRecords(msgspec.Struct, Generic[Data], rename="pascal", gc=False):
    records: list[KinesisRecord[Data]] = []


_SMALL: Final = msgspec.json.Decoder(_EventRecords[bytes])
_LARGE: Final = msgspec.json.Decoder(_EventRecords[str])


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
    """Decode the rows of one shard's range. See `Decoder` for the arguments."""
    decoder = Decoder(deaggregate=deaggregate, left_out=left_out)
    yield from decoder.add(payloads, key, after, through, hash_range)
    yield from decoder.finish()


class Decoder:
    """Decodes the rows of ranges, one range after another. Ranges with few rows share batches.

    Batches have the schema `SCHEMA` and 1 to `MAX_ROWS` rows. The rows of a shard are in the order of their sequence numbers. A record
    appears once, even if its event was delivered twice.

    Args:
        deaggregate: Whether to split KPL aggregates.
        left_out: Called with a shard and the number of its dropped KPL aggregates. If None, a warning is logged instead.
    """

    def __init__(self, *, deaggregate: bool, left_out: Callable[[ShardKey, int], None] | None = None) -> None:
        self._left_out = left_out or _log_left_out
        self._builder = BatchBuilder(deaggregate=deaggregate)
        core = new_batch(deaggregate=deaggregate)
        self._core = None if core is None else _CoreDecoder(core)

    def add(
        self,
        payloads: Iterable[bytes | memoryview],
        key: ShardKey,
        after: Position,
        through: Position,
        hash_range: tuple[int, int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Decode a range, and yield the batches that have become full.

        Args:
            payloads: Raw events of the shard that cover the range, in order.
            after: Drop records up to this position. If it is inside an aggregate (`INSIDE`), also drop the aggregate's delivered rows.
            through: Stop at the first record after this position.
            hash_range: First and last hash key of the shard, to drop aggregates that have records of other shards; None disables dropping.

        Raises `FrameError` if a payload is not an event with records.
        """
        cutter = _Cutter(key, after, through)
        builder, core = self._builder, self._core
        builder.begin(key, hash_range)
        if core:
            core.begin(cutter, hash_range)
        begun = after if after.kind is PositionKind.INSIDE else None
        for payload in payloads:
            if core and not begun and builder.empty and core.take(payload):
                if core.full:
                    yield from core.flush()
                if cutter.done:
                    break
                continue
            if core:
                core.hand_over(builder)
            records, data = cutter.cut(payload)
            if begun and records:
                # Reading starts at the partly delivered aggregate. So it is the first record, unless it has been trimmed in the meantime.
                if int(records[0].sequence_number) == begun.value:
                    yield from builder.rest(records.pop(0), data.pop(0), begun.sub)
                begun = None
            if records:
                builder.add(records, data, len(payload))
                if builder.full:
                    yield from builder.flush()
            if cutter.done:
                break

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of the remaining rows. Logs the number of corrupt aggregates, and calls `left_out` for dropped aggregates.

        Raises `FrameError` if a record has a value that does not fit into a row.
        """
        if self._core:
            yield from self._core.flush()
        yield from self._builder.flush()
        self._builder.report(self._left_out)


class _Cutter:
    """Decodes events, and selects the records with sequence numbers in (`floor`, `ceiling`], each once. A bound of None means no limit."""

    def __init__(self, key: ShardKey, after: Position, through: Position) -> None:
        self.done = False
        self.key = key
        number = after.sequence_number
        self.floor = -1 if number is None else number - (after.kind is PositionKind.INSIDE)
        self.ceiling = through.value if through.kind is PositionKind.AFTER else None
        self.large = False

    def cut(self, payload: bytes | memoryview) -> tuple[list[KinesisRecord[Any]], list[bytes]]:
        """Return the event's records in the range, and their data. Raises `FrameError` if the payload is not an event with records."""
        large, ceiling = self.large, self.ceiling
        try:
            records: list[KinesisRecord[Any]] = (_LARGE if large else _SMALL).decode(payload).records
            if not records:
                return [], []
            self.large = len(payload) / len(records) > _PAYS_OFF
            last = int(records[-1].sequence_number)
            if _is_straight(records, self.floor) and (ceiling is None or last <= ceiling):
                self.floor = last
            else:
                records, self.floor = _cut(records, self.floor, ceiling)
            self.done = ceiling is not None and last >= ceiling
            # Pass positional arguments: keyword arguments of `b64decode` cost as much as decoding 500 bytes.
            if large:
                return records, [b64decode(record.data, None, True) for record in records]
            return records, [record.data for record in records]
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise undecodable(self.key, error) from None


class _RangePayloads(NamedTuple):
    """Payloads of one range that the core has decoded into its current batch. Their records come after sequence number `cutter.floor`."""

    cutter: _Cutter
    hash_range: tuple[int, int] | None
    payloads: list[bytes | memoryview]


class _CoreDecoder:
    """Decodes payloads with the native core. If the core declines a payload, Python decodes all payloads of the current batch again.

    Therefore, batches have the same boundaries as if Python decoded everything, and only Python code raises errors.
    """

    def __init__(self, core: Batch) -> None:
        self._core = core
        self._ranges: list[_RangePayloads] = []
        self._ready = False
        self._rows = 0
        self._size = 0

    def begin(self, cutter: _Cutter, hash_range: tuple[int, int] | None) -> None:
        """Begin decoding the range of `cutter`. KPL aggregates with a hash key outside `hash_range` are dropped, unless it is None."""
        self._ranges.append(_RangePayloads(cutter, hash_range, []))
        self._ready = False

    def take(self, payload: bytes | memoryview) -> bool:
        """Decode a payload of the current range. Return False if the core cannot decode it."""
        cutter, _, payloads = self._ranges[-1]
        if not self._ready:
            floor = None if cutter.floor < 0 else str(cutter.floor)
            ceiling = None if cutter.ceiling is None else str(cutter.ceiling)
            self._ready = self._core.begin(*cutter.key, floor, ceiling)
        brought = self._core.add(payload) if self._ready else None
        if brought is None:
            return False
        kept, records, cutter.done = brought
        if kept:
            payloads.append(payload)
            self._rows += kept
            self._size += len(payload)
        if records:
            cutter.large = len(payload) / records > _PAYS_OFF
        return True

    @property
    def full(self) -> bool:
        """Whether the decoded rows fill a batch."""
        return is_full(self._rows, self._size)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of all rows that were decoded since the last `flush`."""
        if not self._rows:
            return
        batch = pa.record_batch(self._core.take())
        cutter, hash_range, _ = self._ranges[-1]
        if self._ready and (floor := self._core.floor) is not None:
            cutter.floor = int(floor)
        self._ranges = [_RangePayloads(cutter, hash_range, [])]
        self._rows = self._size = 0
        for start, stop in even_parts(batch.num_rows):
            yield batch.slice(start, stop - start)

    def hand_over(self, builder: BatchBuilder) -> None:
        """Decode the payloads of the current batch again, with Python, and add their records to `builder`, which continues the batch."""
        self._ready = False
        if not self._rows:
            return
        for cutter, hash_range, payloads in self._ranges:
            builder.begin(cutter.key, hash_range)
            large = cutter.large
            for payload in payloads:
                builder.add(*cutter.cut(payload), len(payload))
            # Restore `large`, which `cut` overwrites: it describes the last decoded event, which may not be among these payloads.
            cutter.large = large
        self._ranges = [_RangePayloads(cutter, hash_range, [])]
        self._core.clear()
        self._rows = self._size = 0


def _is_straight(records: list[KinesisRecord[Any]], floor: int) -> bool:
    """Whether all records are after `floor` and in order. Compares sequence numbers as text, so it is False if their lengths differ."""
    numbers = [record.sequence_number for record in records]
    return (
        int(numbers[0]) > floor
        and all(map(lt, numbers, islice(numbers, 1, None)))
        and (len(set(map(len, numbers))) == 1)
    )


def _cut(records: list[KinesisRecord[Any]], floor: int, ceiling: int | None) -> tuple[list[KinesisRecord[Any]], int]:
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


def _log_left_out(key: ShardKey, aggregates: int) -> None:
    logger.warning("%s: %d KPL aggregates dropped: hash keys of their records belong to other shards", key, aggregates)
