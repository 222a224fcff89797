"""A model of writes to Kinesis without I/O, for the producer's tests: shards, limits, and what readers see."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from kinesis_efo.producer.aggregation import Parcel
from kinesis_efo.producer.queue import Result
from kinesis_efo.producer.record import Record
from kinesis_efo.producer.routing import HashRange, ShardMap, StreamTraits
from kinesis_efo.records.distribution import Distribution

RING = 1 << 128
THROTTLE = "ProvisionedThroughputExceededException"


Answer = Result


def even_shards(count: int) -> list[HashRange]:
    return [
        HashRange(f"shardId-{number:012d}", RING * number // count, RING * (number + 1) // count - 1)
        for number in range(count)
    ]


@dataclass
class ModelStream:
    """The shards of a stream, and the records that a KCL reader gets from them."""

    ranges: list[HashRange]
    distribution: Distribution = Distribution.KEYED
    unknown: str = ""
    placed_by_kinesis: bool | None = None
    turns: Iterator[int] = field(default_factory=count)
    seen: list[Record] = field(default_factory=list)
    by_shard: dict[str, list[Record]] = field(default_factory=dict)
    _mapped: list[HashRange] = field(default_factory=list, init=False)
    _map: ShardMap = field(init=False)

    def split(self, place: int) -> None:
        """Split the open shard at a place on the ring, if it is wide enough."""
        target = next(shard for shard in self.ranges if shard.open and shard.start <= place <= shard.end)
        if target.end - target.start < 2:
            return
        middle = (target.start + target.end) // 2
        number = len(self.ranges)
        self.ranges.remove(target)
        self.ranges += [
            HashRange(target.id, target.start, target.end, open=False),
            HashRange(f"shardId-{number:012d}", target.start, middle),
            HashRange(f"shardId-{number + 1:012d}", middle + 1, target.end),
        ]

    @property
    def map(self) -> ShardMap:
        # Making it takes longer than all else here.
        if self._mapped != self.ranges:
            self._mapped, self._map = list(self.ranges), ShardMap(self.ranges)
        return self._map

    def store(self, parcel: Parcel) -> Answer:
        """Store a parcel. KCL drops an aggregate with a record that belongs to another shard."""
        place = parcel.records[0].hash if parcel.hash_key is None else int(parcel.hash_key)
        shard = self.map.shard_of(place)
        if self.distribution is Distribution.AUTO if self.placed_by_kinesis is None else self.placed_by_kinesis:
            shard = self.map.open_shards[next(self.turns) % len(self.map.open_shards)]
        if len(parcel.records) == 1 or all(self.map.covers(shard, record.hash) for record in parcel.records):
            self.seen += parcel.records
            self.by_shard.setdefault(shard, []).extend(parcel.records)
        return Answer(shard)


class ModelService:
    """The model as the producer's engine calls it. `script` may answer, raise or wait instead of the stream."""

    def __init__(self, stream: ModelStream, max_bytes: int = 1 << 20) -> None:
        self.stream = stream
        self.max_bytes = max_bytes
        self.requests: list[Sequence[Parcel]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.lists = self.asked = 0
        self.keyed: list[bool] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.script: Callable[[Sequence[Parcel]], Sequence[Result] | None] = lambda _: None

    async def put_records(self, parcels: Sequence[Parcel], *, keyed: bool) -> Sequence[Result]:
        self.requests.append(parcels)
        self.keyed.append(keyed)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
            scripted = self.script(parcels)
            return [self.stream.store(parcel) for parcel in parcels] if scripted is None else scripted
        finally:
            self.in_flight -= 1

    async def shards(self) -> list[HashRange]:
        self.lists += 1
        return list(self.stream.ranges)

    async def traits(self) -> StreamTraits:
        self.asked += 1
        return StreamTraits(self.max_bytes, self.stream.distribution, self.stream.unknown)
