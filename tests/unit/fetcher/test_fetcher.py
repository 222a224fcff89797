"""A whole fetcher in virtual time, against a model of the stream and of the lease table.

`Query` plays Spark: polls, reads the ranges (some attempts fail, some actions read twice), goes on. The virtual loop raises
when nobody can go on, so a deadlock cannot pass unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.errors import FetcherError
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
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.metrics.labels import OTHER
from kinesis_efo.metrics.registry import Values, merge
from kinesis_efo.options import Bounds, RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Offset, ShardKey, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.query import Query as Planning
from kinesis_efo.run.run import Run
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import ModelStream
from tests.support.planned import finish, planned
from tests.support.polled_stream import PolledClient
from tests.support.virtual_time import LoopClock, run

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
        ends: Bounds | None = None,
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        self.stream = stream
        self.store = store or MemoryLeaseStore()
        self.rows: list[tuple[str, int]] = []
        self.most_used = 0
        self._planned: Offset | None = None
        clock = LoopClock()
        ref, transport, limits = REF, stream, KINESIS_LIMITS
        if polled is not None:
            ref, limits = replace(REF, consumer_arn=None), polling_limits(KINESIS_LIMITS)
            transport = PollingTransport(polled, clock, 1.0)  # type: ignore[assignment]
        self._collectors: dict[int, tuple[FetcherCollector, Values]] = {}
        access = Stream(ref, transport, stream, RetrySettings(), "manifest.json", clock, limits)
        keys = LeaseKeys({"orders": "dev-orders"})
        self.streams = {"orders": access}
        self.leases = RunLease(self.store, f"w{id(self)}", keys, Timing(10.0), clock, Random(1), application="lake")
        budget = Budget(buffer_bytes, now=clock.monotonic)
        streams = Streams(self.streams)
        self.fetcher = Fetcher(streams, budget, FetcherSettings(fail_on_data_loss, patience=660.0), clock)
        self.run = Run(streams, self.fetcher, self.leases, self.store, keys, 25.0, 660.0, clock)
        self.planner = Planning(self.run, ends)

    async def __aenter__(self) -> Query:
        await self.run.start("grpc://here")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run.stop()

    async def poll(self, offset: Offset, max_bytes: int = NO_LIMIT, max_records: int = NO_LIMIT) -> Offset:
        """The next offset; the same where there is nothing new. Who asks for more than was planned is done with that."""
        if offset == self._planned:
            await self.commit(offset)
        await self.planner.wait_held(1.0)
        reply = await self.planner.poll(offset, max_bytes, max_records, 0.2)
        self._planned = planned(offset, reply)
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


def scenario(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in virtual time, an hour of it at most."""

    def wrapped() -> None:
        run(asyncio.wait_for(test(), 3600))

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


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


@scenario
async def test_checkpoints_are_written_without_polls() -> None:
    stream = ModelStream(shards=2)
    async with Query(stream) as query:
        stream.put(0, 30, arrived=LoopClock().time())
        begin = horizon(stream)
        while (tips := await query.planner.tips(begin, 1.0)) is None:
            pass
        for wanted in begin.ranges_to(tips):
            query.rows += await query.read(wanted)
        await asyncio.sleep(6)  # only the next event of the subscription gets as far as the tip
        await query.commit(tips)
    assert sorted(query.rows) == sorted(everything(stream))
    rows = {key: query.store.lease(f"orders:{key.shard}") for key in tips}
    assert {key: row.position for key, row in rows.items()} == dict(tips)
    assert [row.record for _, row in sorted(rows.items())] == [everything(stream)[0][1], None]


@scenario
async def test_error_of_the_shard_watch_reaches_the_query() -> None:
    class Broken(ModelStream):
        """Answers from the second time on what nobody expects."""

        listings = 0

        async def shards(self, stream_arn: str) -> list[Shard]:
            self.listings += 1
            return await super().shards(stream_arn) if self.listings == 1 else [None]  # type: ignore[list-item]

    stream = Broken()
    async with Query(stream) as query:
        with pytest.raises(FetcherError, match="watching the shards failed: AttributeError") as caught:
            await asyncio.wait_for(until_read(query, horizon(stream), 1), 100)
        assert isinstance(caught.value.__cause__, AttributeError)


@scenario
async def test_a_stalled_query_shows_in_the_metrics() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[1000] * 40)
    shard = (("stream", "orders"), ("shard", "shardId-000000000000"))
    async with Query(stream, buffer_bytes=10_000) as query:
        offset = horizon(stream)
        offset = await query.poll(offset)
        await asyncio.sleep(100)
        counted = {
            metric: value
            for (metric, attributes), value in query.counted(100).items()
            if set(shard) >= set(attributes[2:])
        }
        assert counted[metrics.WAITING] > 99
        assert 99 <= counted[metrics.BACKPRESSURE] <= 101
        assert counted[metrics.LAG] >= 80_000, "silence is lag"
        assert counted[metrics.OPEN] == 0, "closed on purpose"
        assert 0 < counted[metrics.RECORDS] < 40
        assert 0 < counted[metrics.BUFFERED] <= counted[metrics.BUFFER_LIMIT] == 10_000
        assert counted[metrics.LEASES_HELD] == counted[metrics.LEASES_WANTED] == 1
        await until_read(query, horizon(stream), 40, check=False)
        about = (("application", "lake"), ("environment", "dev"), ("stream", "orders"))
        assert query.counted(100)[metrics.PAUSED, about] >= 1


shapes = st.fixed_dictionaries(
    {
        "records": st.lists(st.lists(st.integers(0, 3000), max_size=15), min_size=1, max_size=3),
        "event_records": st.lists(st.integers(1, 4), min_size=1, max_size=4),
        "buffer_bytes": st.integers(600, 30_000),
        "max_bytes": st.integers(1, 40_000),
        "max_records": st.integers(1, 20),
        "seed": st.integers(0, 2**32),
    }
)


# Shows 5, 8.
@given(shapes)
def test_every_reader_gets_exactly_its_range_whatever_happens(shape: dict[str, Any]) -> None:
    async def main() -> None:
        random = Random(shape["seed"])
        stream = ModelStream(len(shape["records"]), shape["event_records"])
        for number, sizes in enumerate(shape["records"]):
            stream.put(number, *sizes)
        if random.random() < 0.5:
            stream.split(0)
            stream.put(len(shape["records"]), 100, 2000, 30)
        rows: list[tuple[str, int]] = []
        total = len(everything(stream))
        async with Query(stream, buffer_bytes=shape["buffer_bytes"]) as query:
            offset, previous = horizon(stream), None
            while len(rows) < total:
                end = await query.poll(offset, shape["max_bytes"], shape["max_records"])
                if previous is not None and random.random() < 0.7:
                    await query.commit(offset)
                ranges = offset.ranges_to(end)
                random.shuffle(ranges)
                for wanted in ranges:
                    if random.random() < 0.2:
                        await query.read(wanted, stop_after=random.randrange(3))
                if random.random() < 0.2:
                    results = [rows for wanted in ranges for rows in [await query.read(wanted)]]
                else:
                    attempts = [query.read(wanted, pause=random.choice([0.0, 0.0, 0.3])) for wanted in ranges]
                    results = list(await asyncio.gather(*attempts))
                if random.random() < 0.2:
                    assert results == list(await asyncio.gather(*map(query.read, ranges))), "a second action"
                for wanted, got in zip(ranges, results, strict=True):
                    assert got == expected(stream, wanted)
                    rows += got
                previous, offset = offset, end
                for shards in (0, 1, 100):
                    query.counted(shards)
            fetched = sum(value for (metric, _), value in query.counted(0).items() if metric is metrics.RECORDS)
            assert fetched >= total, "some are fetched again"
            most = max(
                (size // 3 * 4 + 100 for shard in stream.shards_by_id.values() for _, size in shard.records), default=0
            )
            assert query.most_used <= shape["buffer_bytes"] + len(stream.shards_by_id) * (4 * most + 700)
        assert sorted(rows) == sorted(everything(stream))

    run(asyncio.wait_for(main(), 50_000))
