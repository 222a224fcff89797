"""A shard: records in order, a hash range, parents and children. No I/O; the caller passes the time.

Records are stored as JSON in the format of events, so that an event is built by joining them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from .limits import Bucket
from .sequence import Numbering, Parsed, counted

MAX_HASH = 2**128 - 1

_tick = attrgetter("tick")
_arrival = attrgetter("arrival")


class Record(msgspec.Struct, array_like=True, gc=False):
    """A stored record. `size` is the bytes of data and partition key; `arrival` is in epoch seconds."""

    tick: int
    arrival: float
    size: int
    json: bytes


class KeptShard(msgspec.Struct):
    """A shard, as stored in a data directory. Hash keys are strings because they have 128 bits."""

    index: int
    hash_range: tuple[str, str]
    parents: tuple[str, ...]
    children: tuple[str, ...]
    created_tick: int
    created_at: float
    closed_tick: int | None
    closed_at: float | None
    trimmed: int
    records: list[Record]
    numbered: int | None = None


class Page(NamedTuple):
    """Consecutive records of a shard: their JSON, their size, and the cursor and sequence number to continue from."""

    records: list[bytes]
    size: int
    after: int
    continuation: str


class Shard:
    """One shard of a stream. A cursor is an index into all records that the shard has ever received; trimming does not change cursors.

    Args:
        index: Index of the shard in the stream; never reused.
        hash_range: First and last hash key, both included.
        parents: IDs of the parent shards: none, one (split) or two (merge).
        tick: Tick (see `Ticks`) of the creation.
        at: Time of the creation, epoch seconds.
        now: Monotonic seconds, for the rate limits.
        numbered: Creation time to encode in sequence numbers, epoch seconds; None for the time of `tick`.
    """

    def __init__(
        self,
        index: int,
        hash_range: tuple[int, int],
        parents: tuple[str, ...],
        tick: int,
        at: float,
        now: float,
        numbered: int | None = None,
    ) -> None:
        self.index = index
        self.id = f"shardId-{index:012d}"
        self.hash_range = hash_range
        self.parents = parents
        self.children: tuple[Shard, ...] = ()
        self.created_tick = tick
        self.created_at = at
        self.closed_tick: int | None = None
        self.closed_at: float | None = None
        self.numbering = Numbering(index, numbered or tick // 1_000_000_000)
        self._base = self.numbering.base
        self._records: list[Record] = []
        self._in_order = True
        self._trimmed = 0
        self._listeners: set[Callable[[], None]] = set()
        self.write_bytes = Bucket(1024 * 1024, now)
        self.write_records = Bucket(1000, now)
        self.read_bytes = Bucket(2 * 1024 * 1024, now)
        self.read_calls = Bucket(5, now)

    def keep(self) -> KeptShard:
        """Return the shard as it is stored in a data directory."""
        first, last = self.hash_range
        return KeptShard(
            index=self.index,
            hash_range=(str(first), str(last)),
            parents=self.parents,
            children=tuple(child.id for child in self.children),
            created_tick=self.created_tick,
            created_at=self.created_at,
            closed_tick=self.closed_tick,
            closed_at=self.closed_at,
            trimmed=self._trimmed,
            records=self._records,
            numbered=self.numbering.created,
        )

    @classmethod
    def restored(cls, kept: KeptShard, now: float) -> Shard:
        """Restore a shard from a data directory. The caller sets `children`, once all shards are restored."""
        first, last = kept.hash_range
        shard = cls(
            kept.index, (int(first), int(last)), kept.parents, kept.created_tick, kept.created_at, now, kept.numbered
        )
        shard.closed_tick, shard.closed_at = kept.closed_tick, kept.closed_at
        shard._trimmed, shard._records = kept.trimmed, kept.records
        shard._in_order = all(one.arrival <= other.arrival for one, other in pairwise(kept.records))
        return shard

    def append(
        self, tick: int, arrival: float, key_json: bytes | None, size: int, data: bytes, encryption: bytes = b"NONE"
    ) -> str:
        """Store a record and return its sequence number, without waking listeners.

        Args:
            tick: Tick of the record, higher than any before.
            arrival: Arrival time in epoch seconds, with whole milliseconds.
            key_json: Partition key as a JSON string; None if the record has none.
            size: Bytes of data and key.
            data: Data in base64.
            encryption: NONE or KMS.
        """
        number = str(self._base + counted(tick))
        if self._records and self._records[-1].arrival > arrival:
            self._in_order = False
        json = b'{"ApproximateArrivalTimestamp":%.3f,"Data":"%b","EncryptionType":"%b",%b"SequenceNumber":"%b"}' % (
            arrival,
            data,
            encryption,
            b"" if key_json is None else b'"PartitionKey":%b,' % key_json,
            number.encode(),
        )
        self._records.append(Record(tick, arrival, size, json))
        return number

    def close(self, tick: int, at: float, children: tuple[Shard, ...]) -> None:
        """Close the shard; new records go to `children` from now on."""
        self.closed_tick, self.closed_at, self.children = tick, at, children
        self.wake()

    def trim(self, horizon: float) -> None:
        """Remove expired records: all before the first record that arrived at `horizon` (epoch seconds) or later."""
        if self._records and self._records[0].arrival < horizon:
            gone = self._first_at(horizon)
            del self._records[:gone]
            self._trimmed += gone

    @property
    def closed(self) -> bool:
        """Whether the shard has stopped accepting records."""
        return self.closed_tick is not None

    @property
    def oldest(self) -> int:
        """Cursor of the oldest record that has not expired."""
        return self._trimmed

    @property
    def tip(self) -> int:
        """Cursor after the newest record."""
        return self._trimmed + len(self._records)

    def cursor_at(self, number: Parsed, *, after: bool) -> int:
        """Cursor of the record with this number, or of the next record if `after` is set or no stored record has this number."""
        at = bisect_left(self._records, number.tick, key=_tick)
        if at < len(self._records) and self._records[at].tick == number.tick:
            at += after or number.continuation
        return self._trimmed + at

    def cursor_at_time(self, at: float) -> int:
        """Cursor of the first record that arrived at `at` (epoch seconds) or later."""
        return self._trimmed + self._first_at(at)

    def _first_at(self, at: float) -> int:
        records = self._records
        if self._in_order:
            return bisect_left(records, at, key=_arrival)
        return next((index for index, record in enumerate(records) if record.arrival >= at), len(records))

    def page(self, cursor: int, max_records: int, max_bytes: int) -> Page | None:
        """Return the records from `cursor` on, up to the limits but at least one record; None if there are no records."""
        records = self._records
        start = max(0, cursor - self._trimmed)
        if start >= len(records):
            return None
        size = 0
        end = start
        for record in records[start : start + max_records]:
            size += record.size
            if size > max_bytes and end > start:
                size -= record.size
                break
            end += 1
        last = records[end - 1]
        return Page(
            [record.json for record in records[start:end]],
            size,
            self._trimmed + end,
            self.numbering.continuation(last.tick),
        )

    def number_before(self, cursor: int) -> str | None:
        """Sequence number of the record before a cursor; None if there is no such record, or if it has expired."""
        at = cursor - self._trimmed - 1
        return self.numbering.record(self._records[at].tick) if 0 <= at < len(self._records) else None

    def standing(self, cursor: int) -> str:
        """Continuation sequence number for a reader whose next record is the one at `cursor`."""
        return self.numbering.continuation(self._records[max(0, cursor - self._trimmed)].tick - 1)

    def behind_millis(self, cursor: int, now: float) -> int:
        """Milliseconds by which a reader at `cursor` is behind: 0 at the tip, otherwise the age of the next record, at least 1."""
        at = max(0, cursor - self._trimmed)
        if at >= len(self._records):
            return 0
        return max(1, int((now - self._records[at].arrival) * 1000))

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when records arrive or the shard closes."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`."""
        self._listeners.discard(listener)

    def wake(self) -> None:
        """Call the listeners."""
        for listener in tuple(self._listeners):
            listener()

    def describe(self) -> dict[str, Any]:
        """Describe the shard in the format of ListShards responses."""
        sequence = {"StartingSequenceNumber": self.numbering.record(self.created_tick)}
        if self.closed_tick is not None:
            sequence["EndingSequenceNumber"] = self.numbering.record(self.closed_tick)
        shown: dict[str, Any] = {
            "ShardId": self.id,
            "HashKeyRange": self._hash_key_range(),
            "SequenceNumberRange": sequence,
        }
        return shown | dict(zip(("ParentShardId", "AdjacentParentShardId"), self.parents, strict=False))

    def describe_children(self) -> list[dict[str, Any]]:
        """Describe the child shards in the format of `ChildShards` in a SubscribeToShardEvent."""
        return [
            {"HashKeyRange": child._hash_key_range(), "ParentShards": list(child.parents), "ShardId": child.id}
            for child in self.children
        ]

    def _hash_key_range(self) -> dict[str, str]:
        return {"EndingHashKey": str(self.hash_range[1]), "StartingHashKey": str(self.hash_range[0])}
