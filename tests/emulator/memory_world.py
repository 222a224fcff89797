"""A stream in memory that is written and resharded, an application that reads it, and checks of what was read."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from aws_kinesis_agg.aggregator import RecordAggregator

from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Offset
from kinesis_efo_local import Settings
from kinesis_efo_local.fault_injection import FaultInjection
from tests.emulator.memory import MemoryKinesis
from tests.emulator.query import Application, Query
from tests.support.virtual_time import LoopClock

STREAM = "dev-orders"
QUICK: dict[str, Any] = {"consumer_creating_seconds": 0.0, "consumer_deleting_seconds": 0.0}


class JumpingClock(LoopClock):
    """A clock whose wall time may jump."""

    def __init__(self) -> None:
        self.jump = 0.0

    def time(self) -> float:
        return super().time() + self.jump


class MemoryWorld:
    """A stream, and an application that reads it. The records of each key are numbered in the order in which they are written.

    Args:
        random: Decides what Spark does.
        shards: Number of shards at first.
        faults: Injects faults.
        settings: Settings of the local Kinesis, in addition to `QUICK`.
        max_record_kib: Size of the largest record, KiB.
        application: Further arguments of `Application`.

    Attributes:
        written: Number of records written so far, by key.
        skipped: Number of records that the query shall not read, by key: the first ones.
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
        """Put one Kinesis record: plain, or an aggregate of several."""
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
        """Split an open shard, given by its place in the hash space."""
        shard = self.kinesis.state.streams[STREAM].open_shards[index]
        middle = str(sum(shard.hash_range) // 2 + 1)
        self.kinesis.call("SplitShard", StreamName=STREAM, ShardToSplit=shard.id, NewStartingHashKey=middle)

    def merge(self, index: int) -> None:
        """Merge an open shard, given by its place in the hash space, with the next one."""
        one, other = self.kinesis.state.streams[STREAM].open_shards[index : index + 2]
        self.kinesis.call("MergeShards", StreamName=STREAM, ShardToMerge=one.id, AdjacentShardToMerge=other.id)

    def reshard(self, random: Random) -> None:
        """Split a shard, or merge two."""
        count = len(self.kinesis.state.streams[STREAM].open_shards)
        if count > 1 and random.random() < 0.4:
            self.merge(random.randrange(count - 1))
        else:
            self.split(random.randrange(count))

    def scale(self, target: int) -> None:
        """Change the number of open shards with UpdateShardCount."""
        request = {"TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"}
        self.kinesis.call("UpdateShardCount", StreamName=STREAM, **request)

    def deployed(self) -> StreamRef:
        """The stream and its consumer, as a manifest names them. Registers the consumer if it is missing."""
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
        """Run the query until a number of rows was read, or everything, which is checked then.

        Args:
            rows: Number of rows, including those of earlier runs; None for everything.
            batches: The least number of polls.
            meanwhile: Called after each micro-batch with its number.
            seconds: Time limit.
        """
        async with asyncio.timeout(seconds), Query(self.application) as query:
            offset = await query.begin()
            number = 0
            while number < batches or (len(self.application.rows) < rows if rows is not None else not self.all_read):
                offset = await query.batch(offset)
                if meanwhile is not None and (awaitable := meanwhile(number)) is not None:
                    await awaitable
                number += 1
        if rows is None:
            self.check()
            self.check_order_of_shards()
        return query

    # -- what must hold

    @property
    def expected(self) -> int:
        """Number of records that the query has to read."""
        return sum(self.written.values()) - sum(self.skipped.values())

    @property
    def all_read(self) -> bool:
        """Whether the query has read as many rows as it has to."""
        return len(self.application.rows) >= self.expected

    def check(self, *, whole: bool = True) -> None:
        """Check that everything was read once and in order per key; unless `whole`, everything up to some record of each key.

        Raises:
            AssertionError: A record was lost, doubled or out of order.
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
        """The parents of every shard, by its id."""
        return {shard.id: shard.parents for shard in self.kinesis.state.streams[STREAM].shards.values()}

    def check_order_of_shards(self) -> None:
        """Check that every shard was started only after a micro-batch had read its parents to their ends.

        Raises:
            AssertionError: A shard was started earlier.
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
