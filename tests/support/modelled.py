"""A whole run and one query of it in virtual time, against models of the stream and of the lease table.

`Query` plays Spark: polls, reads the ranges (some attempts fail, some actions read twice), goes on. The virtual loop raises
when nobody can go on, so a deadlock cannot pass unseen.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.polling import PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.manifest import StreamRef
from kinesis_efo.metrics import Kind
from kinesis_efo.metrics.labels import OTHER
from kinesis_efo.metrics.registry import Values, merge
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Offset, ShardKey, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.query import Query as Planning
from kinesis_efo.run.run import Elsewhere, Run
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.model_stream import ModelStream
from tests.support.planned import finish, planned
from tests.support.polled_stream import PolledClient
from tests.support.virtual_time import LoopClock

REF = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")
NO_LIMIT = 1 << 60


class Query:
    """A fetcher, and what Spark would do with it."""

    def __init__(
        self,
        stream: ModelStream,
        store: MemoryLeaseStore | None = None,
        buffer_bytes: int = 1 << 20,
        polled: PolledClient | None = None,
        *,
        fail_on_data_loss: bool = True,
        patience: float = 660.0,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self.stream = stream
        self.store = store or MemoryLeaseStore()
        self.network = Network(self.store, Random(1))
        self.rows: list[tuple[str, int]] = []
        self.most_used = 0
        self._planned: Offset | None = None
        clock = LoopClock()
        ref, transport, limits = REF, stream, KINESIS_LIMITS
        if polled is not None:
            ref, limits = replace(REF, consumer_arn=None), polling_limits(KINESIS_LIMITS)
            transport = PollingTransport(polled, clock, 1.0)  # type: ignore[assignment]
        self._collectors: dict[int, tuple[FetcherCollector, Values]] = {}
        self.access = Stream(ref, transport, stream, RetrySettings(), "manifest.json", clock, limits)
        keys = LeaseKeys({"orders": "dev-orders"})
        self.streams = {"orders": self.access}
        self.leases = RunLease(self.network, f"w{id(self)}", keys, Timing(10.0), clock, Random(1), application="lake")
        budget = Budget(buffer_bytes, now=clock.monotonic)
        streams = Streams(self.streams)
        self.fetcher = Fetcher(streams, budget, FetcherSettings(fail_on_data_loss, patience=patience), clock)
        self.run = Run(
            streams, self.fetcher, self.leases, self.network, keys, 25.0, patience, clock, elsewhere=elsewhere
        )
        self.planner = Planning(self.run)

    async def __aenter__(self) -> Query:
        await self.run.start("grpc://here")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.network.cut = False
        await self.run.stop()

    async def poll(self, offset: Offset, max_bytes: int = NO_LIMIT, max_records: int = NO_LIMIT) -> Offset:
        """The next offset; the same where there is nothing new. Who asks for more than was planned is done with that."""
        if offset == self._planned:
            await self.commit(offset)
        await self.planner.wait_held(1.0)
        self._planned = planned(offset, await self.planner.poll(offset, max_bytes, max_records, 0.2))
        return self._planned

    async def read(
        self, wanted: ShardRange, stop_after: int | None = None, pause: float = 0.0
    ) -> list[tuple[str, int]]:
        """The rows of one range, or of its first chunks."""
        payloads: list[bytes] = []
        if self.planner.progress.finished is None:
            ends = Offset({wanted.key: wanted.through})
            await self.planner.check_replay(Offset({wanted.key: wanted.after}), [wanted], ends)
        reader = self.run.serving.of("query").read(wanted)
        try:
            async for chunk in reader:
                payloads += chunk
                used = self.fetcher.budget.used
                self.most_used = max(self.most_used, used)
                await asyncio.sleep(pause)
                if stop_after is not None and len(payloads) > stop_after:
                    break
        finally:
            await reader.aclose()  # type: ignore[attr-defined]
        batches = decode(payloads, wanted.key, wanted.after, wanted.through, deaggregate=True)
        return [(wanted.key.shard, int(number.as_py())) for batch in batches for number in batch.column(2)]

    def counted(self, shards: int) -> Values:
        """What the fetcher has counted so far, with so many shards told apart; no total may have stepped back."""
        if shards not in self._collectors:
            about = {"application": "lake", "environment": "dev"}
            clock = LoopClock()
            source = FetcherCollector(self.fetcher, self.streams, self.leases, about, shards, clock.monotonic)
            self._collectors[shards] = (source, {})
        source, before = self._collectors[shards]
        now = merge({}, source())
        for (metric, attributes), value in before.items():
            # A shard's own counts end with it; those of `other` and of the stream never do.
            if metric.kind is Kind.COUNTER and dict(attributes).get("shard", OTHER) == OTHER:
                assert now[metric, attributes] >= value
        self._collectors[shards] = (source, now)
        return now

    async def commit(self, offset: Offset) -> None:
        finish(self.planner, offset)


def expected(stream: ModelStream, wanted: ShardRange) -> list[tuple[str, int]]:
    """The rows of a range, by definition."""
    shard = stream.shards_by_id[wanted.key.shard]
    low = wanted.after.value
    high = NO_LIMIT if wanted.through.is_end else wanted.through.value
    return [(shard.shard_id, number) for number, _ in shard.records if low < number <= high]


def everything(stream: ModelStream) -> list[tuple[str, int]]:
    return [(shard.shard_id, number) for shard in stream.shards_by_id.values() for number, _ in shard.records]


def horizon(stream: ModelStream) -> Offset:
    return Offset(
        {ShardKey("orders", name): TRIM_HORIZON for name, shard in stream.shards_by_id.items() if not shard.parents}
    )


async def until_read(query: Query, offset: Offset, rows: int, check: bool = True) -> Offset:
    """Micro-batches until that many rows were read."""
    while len(query.rows) < rows:
        end = await query.poll(offset)
        for wanted in offset.ranges_to(end):
            got = await query.read(wanted)
            assert not check or got == expected(query.stream, wanted)
            query.rows += got
        await query.commit(end)
        offset = end
    return offset
