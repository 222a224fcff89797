"""A stream in memory that is written and resharded, an application that reads it, and what must have been read in the end."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from aws_kinesis_agg.aggregator import RecordAggregator

from kinesis_efo.local import Settings
from kinesis_efo.local.fault_injection import FaultInjection
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Offset
from tests.emulator.memory import MemoryKinesis
from tests.emulator.query import Application, Query
from tests.support.virtual_time import LoopClock

STREAM = "dev-orders"
QUICK: dict[str, Any] = {"consumer_creating_seconds": 0.0, "consumer_deleting_seconds": 0.0}


class JumpingClock(LoopClock):
    """Wall time that is not as monotonic as the other."""

    def __init__(self) -> None:
        self.jump = 0.0

    def time(self) -> float:
        return super().time() + self.jump


class MemoryWorld:
    """See the module. Records are numbered by key; their order within a key is the order of their numbers.

    Args:
        random: Decides what Spark does.
        shards: How many there are in the beginning.
        faults: What goes wrong.
        settings: Of the local Kinesis, on top of `QUICK`.
        max_record_kib: The largest record.
        application: As `Application`.

    Attributes:
        written: Records written so far, by key.
        skipped: How many of them the query is not to read, by key.
    """

    def __init__(
        self,
        random: Random | None = None,
        *,
        shards: int = 1,
        faults: FaultInjection | None = None,
        settings: dict[str, Any] | None = None,
        max_record_kib: int = 1024,
        **application: Any,
    ) -> None:
        self.clock = JumpingClock()
        self.kinesis = MemoryKinesis(Settings(**QUICK | (settings or {})), self.clock, faults)
        self.kinesis.call("CreateStream", StreamName=STREAM, ShardCount=shards, MaxRecordSizeInKiB=max_record_kib)
        self.application = Application(
            self.kinesis, self.deployed(), random or Random(1), clock=JumpingClock(), **application
        )
        self.written: dict[str, int] = defaultdict(int)
        self.skipped: dict[str, int] = {}

    # -- the stream

    def put(self, key: str, size: int = 10, count: int = 1) -> None:
        """Put one Kinesis record: a plain one, or an aggregate of several."""
        datas = []
        for _ in range(count):
            datas.append(f"{self.written[key]}:{'x' * size}".encode())
            self.written[key] += 1
        if count == 1:
            self.kinesis.put(STREAM, key, datas[0])
            return
        aggregator = RecordAggregator()
        for data in datas:
            aggregator.add_user_record(key, data)
        _, _, data = aggregator.clear_and_get().get_contents()
        self.kinesis.put(STREAM, key, data)

    def put_some(self, count: int, keys: int = 20, size: int = 10) -> None:
        """Put records for some keys in turn."""
        for number in range(count):
            self.put(f"key{number % keys}", size)

    def split(self, index: int) -> None:
        """Split the open shard with that place in the hash space."""
        shard = self.kinesis.state.streams[STREAM].open_shards[index]
        middle = str(sum(shard.hash_range) // 2 + 1)
        self.kinesis.call("SplitShard", StreamName=STREAM, ShardToSplit=shard.id, NewStartingHashKey=middle)

    def merge(self, index: int) -> None:
        """Merge the open shard with that place in the hash space with the next one."""
        one, other = self.kinesis.state.streams[STREAM].open_shards[index : index + 2]
        self.kinesis.call("MergeShards", StreamName=STREAM, ShardToMerge=one.id, AdjacentShardToMerge=other.id)

    def scale(self, target: int) -> None:
        """UpdateShardCount."""
        request = {"TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
        self.kinesis.call("UpdateShardCount", StreamName=STREAM, **request)

    def deployed(self) -> StreamRef:
        """The stream and its consumer as a manifest would name them; what is missing is declared."""
        arn = self.kinesis.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]["StreamARN"]
        consumers = self.kinesis.call("ListStreamConsumers", StreamARN=arn)["Consumers"]
        if not consumers:
            consumers = [self.kinesis.call("RegisterStreamConsumer", StreamARN=arn, ConsumerName="lake")["Consumer"]]
        return StreamRef("orders", STREAM, arn, consumers[0]["ConsumerARN"])

    # -- the query

    async def read(
        self,
        *,
        rows: int | None = None,
        batches: int = 0,
        meanwhile: Callable[[int], Awaitable[None] | None] | None = None,
        seconds: float = 3600.0,
    ) -> Query:
        """One run of the query, until so many rows, or everything, was read.

        Args:
            rows: Rows in all, those of former runs included.
            batches: Polls at least, whatever was read.
            meanwhile: Called after each micro-batch with its number.
            seconds: How long it may take.
        """
        async with asyncio.timeout(seconds), Query(self.application) as query:
            offset = await query.begin()
            number = 0
            while number < batches or (len(self.application.rows) < rows if rows is not None else not self.all_read):
                offset = await query.batch(offset)
                if meanwhile is not None and (happening := meanwhile(number)) is not None:
                    await happening
                number += 1
        return query

    # -- what must hold

    @property
    def expected(self) -> int:
        """Records that the query has to read."""
        return sum(self.written.values()) - sum(self.skipped.values())

    @property
    def all_read(self) -> bool:
        """Whether as many rows were read as there are records."""
        return len(self.application.rows) >= self.expected

    def check(self, *, whole: bool = True) -> None:
        """Everything was read once and in order per key; where not `whole`, everything up to some record of each key.

        Raises:
            AssertionError: It was not.
        """
        read: dict[str, list[int]] = defaultdict(list)
        for row in self.application.rows:
            read[row.key].append(int(row.data.split(b":", 1)[0]))
        for key, numbers in read.items():
            first = self.skipped.get(key, 0)
            assert numbers == list(range(first, first + len(numbers))), f"{key} was read as {numbers}"
            assert first + len(numbers) <= self.written[key], f"{key} was read more often than written"
        if whole:
            missing = {key for key in self.written if self.skipped.get(key, 0) + len(read[key]) < self.written[key]}
            assert not missing, f"records of {missing} were not read"

    @property
    def shards(self) -> dict[str, tuple[str, ...]]:
        """All shards that Kinesis knows, with their parents."""
        return {shard.id: shard.parents for shard in self.kinesis.state.streams[STREAM].shards.values()}

    def check_order_of_shards(self) -> None:
        """No shard was started before the ends of all its parents were in an earlier micro-batch.

        Raises:
            AssertionError: One was.
        """
        ended: set[str] = set()
        for start, end in self.application.offsets:
            for key in end:
                if key not in start:
                    parents = self.shards.get(key.shard, ())
                    first: Offset = self.application.offsets[0][0]
                    read = {parent for parent in parents if parent in {each.shard for each in first} | ended}
                    assert read <= ended | {each.shard for each in end if end[each].is_end}, (key, parents)
            ended |= {key.shard for key, position in end.items() if position.is_end}
