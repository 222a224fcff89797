"""A model of a Kinesis stream, for whole fetchers in virtual time: shards with records, reshards, idle events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from itertools import count

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.kinesis.topology import StreamSummary
from kinesis_efo.kinesis.transport import Quota
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position, PositionKind
from kinesis_efo.records.distribution import Distribution
from kinesis_efo.records.events import Event, read_head

IDLE_SECONDS = 5.0
BEGAN_MS = 1_700_001_000_000
"""The epoch milliseconds at which virtual time begins. So many more, and a number stands for the millisecond in which it was given out."""

MAX_HASH = 2**128 - 1


@dataclass(eq=False)
class ModelShard:
    """A shard and its records: (sequence number, size of the data in bytes)."""

    shard_id: str
    first: int
    hashes: tuple[int, int]
    parents: tuple[str, ...] = ()
    records: list[tuple[int, int]] = field(default_factory=list)
    children: list[ModelShard] = field(default_factory=list)
    last: int | None = None

    def describe(self) -> Shard:
        return Shard(self.shard_id, self.parents, self.hashes, self.first, self.last)


class ModelStream:
    """One stream; implements `Transport` and `Topology`.

    Args:
        shards: Number of shards at first.
        event_records: Number of records of each event, repeated for ever.

    Attributes:
        subscribed: (shard id, position) of every subscription.
        open: Number of open subscriptions, by shard.
        collisions: Shards that somebody subscribed to while another subscription was open.
    """

    def __init__(self, shards: int = 1, event_records: Iterable[int] = (2,)) -> None:
        self.numbers = count(1000, 10)
        self.event_records = list(event_records)
        self.grown = asyncio.Event()
        self.shards_by_id: dict[str, ModelShard] = {}
        self.arrivals: dict[int, float] = {}
        self.subscribed: list[tuple[str, str]] = []
        self.open: dict[str, int] = {}
        self.collisions: list[str] = []
        self.distributes: Distribution | Exception = Distribution.KEYED
        self.distributions_asked = 0
        self.events: dict[str, ModelEvents] = {}
        width = (MAX_HASH + 1) // shards
        for number in range(shards):
            self._add((number * width, (number + 1) * width - 1))

    def __getitem__(self, number: int) -> ModelShard:
        return self.shards_by_id[f"shardId-{number:012d}"]

    # -- writes and reshards

    def put(self, number: int, *sizes: int, arrived: float | None = None) -> None:
        """Put records into a shard; they do not say when they arrived, unless that is given, in epoch seconds."""
        shard = self[number]
        assert shard.last is None, "a closed shard takes no records"
        records = [(next(self.numbers), size) for size in sizes]
        shard.records += records
        if arrived is not None:
            self.arrivals |= dict.fromkeys((sequence for sequence, _ in records), arrived)
        self.grow()

    def behind(self, shard: ModelShard, position: int) -> int:
        """How far an event says that it is behind the tip, milliseconds."""
        return 1000 if shard.records and shard.records[-1][0] > position else 0

    def record(self, number: int, size: int) -> dict[str, object]:
        """A record as events and answers hold it. If nobody said when it arrived, that was long ago, and in the records' order."""
        arrived = self.arrivals.get(number, 1_700_000_000 + number % 1_000_000 / 1000)
        data = "A" * (size // 3 * 4)
        return {
            "ApproximateArrivalTimestamp": arrived,
            "Data": data,
            "PartitionKey": "k",
            "SequenceNumber": str(number),
        }

    def split(self, number: int) -> None:
        """Split a shard in two halves."""
        shard = self[number]
        low, high = shard.hashes
        shard.last = next(self.numbers)
        middle = (low + high) // 2
        shard.children = [self._add(half, (shard.shard_id,)) for half in ((low, middle), (middle + 1, high))]
        self.grow()

    def merge(self, one: int, other: int) -> None:
        """Merge two shards."""
        pair = [self[one], self[other]]
        hashes = (min(shard.hashes[0] for shard in pair), max(shard.hashes[1] for shard in pair))
        for shard in pair:
            shard.last = next(self.numbers)
        child = self._add(hashes, tuple(shard.shard_id for shard in pair))
        for shard in pair:
            shard.children = [child]
        self.grow()

    def _add(self, hashes: tuple[int, int], parents: tuple[str, ...] = ()) -> ModelShard:
        shard = ModelShard(f"shardId-{len(self.shards_by_id):012d}", next(self.numbers), hashes, parents)
        self.shards_by_id[shard.shard_id] = shard
        return shard

    def grow(self) -> None:
        self.grown.set()
        self.grown = asyncio.Event()

    # -- Topology

    async def shards(self, stream_arn: str) -> list[Shard]:
        return [shard.describe() for shard in self.shards_by_id.values()]

    async def shards_open_at(self, stream_arn: str, epoch_ms: int) -> list[Shard] | None:
        return [shard.describe() for shard in self.shards_by_id.values() if shard.last is None]

    async def summary(self, stream_arn: str) -> StreamSummary:
        return StreamSummary(1_700_000_000, 24 * 3600.0)

    async def distribution(self, stream_arn: str) -> Distribution:
        self.distributions_asked += 1
        if isinstance(self.distributes, Exception):
            raise self.distributes
        return self.distributes

    # -- Transport

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota) -> ModelEvents:
        if self.open.get(shard_id):
            self.collisions.append(shard_id)
            self.events[shard_id].close()  # Kinesis gives the shard to the one that comes last
        self.subscribed.append((shard_id, str(position or "LATEST")))
        self.open[shard_id] = 1
        self.events[shard_id] = ModelEvents(self, self.shards_by_id[shard_id], position)
        return self.events[shard_id]


class ModelEvents:
    """The events of one subscription; implements `EventStream`."""

    def __init__(self, stream: ModelStream, shard: ModelShard, position: Position | None) -> None:
        if position is None:
            position = Position.after(shard.records[-1][0] if shard.records else shard.first)
        assert position.kind in (PositionKind.TRIM_HORIZON, PositionKind.AFTER, PositionKind.AT_TIMESTAMP)
        self._stream = stream
        self._shard = shard
        self._at = position.value
        if position.kind is PositionKind.AT_TIMESTAMP:
            self._at = position.value - BEGAN_MS - 1
        self._closing = asyncio.Event()
        self._sizes = count(len(stream.subscribed))
        self._ended = False
        self.received = 0

    def close(self) -> None:
        if not self._closing.is_set():
            self._closing.set()
            self._stream.open[self._shard.shard_id] = 0

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self._closing.is_set():
                raise ConnectionError("closed")
            if self._ended:
                raise StopAsyncIteration
            if ready := [record for record in self._shard.records if record[0] > self._at]:
                sizes = self._stream.event_records
                ready = ready[: sizes[next(self._sizes) % len(sizes)]]
                self._at = ready[-1][0]
                return self._event(self._at, ready)
            if self._shard.last is not None:
                self._ended = True
                return self._event(None)
            # What was put at the very end of the wait comes before the number of an idle event.
            came = await self._something_came() or any(number > self._at for number, _ in self._shard.records)
            if not came:
                self._at = max(self._at, next(self._stream.numbers))
                return self._event(self._at)

    async def _something_came(self) -> bool:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._stream.grown, self._closing)]
        try:
            done, _ = await asyncio.wait(waits, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return bool(done)

    def _event(self, continuation: int | None, records: Iterable[tuple[int, int]] = ()) -> Event:
        self.received += 1
        payload = json.dumps(
            {
                "ContinuationSequenceNumber": None if continuation is None else str(continuation),
                "MillisBehindLatest": self._stream.behind(self._shard, self._at),
                "Records": [self._stream.record(*record) for record in records],
                "ChildShards": [
                    {
                        "ShardId": child.shard_id,
                        "ParentShards": list(child.parents),
                        "HashKeyRange": {
                            "StartingHashKey": str(child.hashes[0]),
                            "EndingHashKey": str(child.hashes[1]),
                        },
                    }
                    for child in (self._shard.children if continuation is None else ())
                ],
            }
        ).encode()
        return Event(payload, read_head(payload))
