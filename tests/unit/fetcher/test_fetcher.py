"""A whole fetcher in virtual time, against a model of the stream and of the lease table.

`Query` plays Spark: polls, reads the ranges (some attempts fail, some actions read twice), goes on. The virtual loop raises
when nobody can go on, so a deadlock cannot pass unseen.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.errors import DataLossError, FetcherError, KinesisEfoError, LeaseLostError, StreamReplacedError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.polling import PollingTransport, polling_limits
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.run import RunLease
from kinesis_efo.manifest import StreamRef
from kinesis_efo.metrics import Kind
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.metrics.labels import OTHER
from kinesis_efo.metrics.registry import Values, merge
from kinesis_efo.options import Bounds, RetrySettings
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.records.decoder import decode
from kinesis_efo.run.query import Query as Planning
from kinesis_efo.run.query_ends import EndPositions
from kinesis_efo.run.run import Run
from kinesis_efo.sharing.local_fetching import LocalFetching
from tests.support.lease_store import MemoryLeaseStore
from tests.support.model_stream import ModelShard, ModelStream
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
        self._streams = {"orders": access}
        self.leases = RunLease(self.store, f"w{id(self)}", keys, Timing(10.0), clock, Random(1), application="lake")
        budget = Budget(buffer_bytes, now=clock.monotonic)
        streams = Streams(self._streams)
        self.fetcher = Fetcher(streams, budget, FetcherSettings(fail_on_data_loss, patience=660.0), clock)
        fetching = LocalFetching(self.fetcher, clock)
        self.run = Run(streams, fetching, self.leases, self.store, keys, 25.0, 660.0, clock)
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
        reply = await self.planner.poll(offset, max_bytes, max_records, 0.2)
        self._planned = planned(offset, reply)
        return self._planned

    async def read(
        self, wanted: ShardRange, stop_after: int | None = None, pause: float = 0.0
    ) -> list[tuple[str, int]]:
        """The rows of one range, or of its first chunks."""
        payloads: list[bytes] = []
        reader = self.fetcher.read(wanted)
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
            source = FetcherCollector(self.fetcher, self._streams, self.leases, about, shards, clock.monotonic)
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
async def test_parents_come_before_children_across_a_split_and_a_merge() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[30] * 5)
    stream.split(0)
    stream.put(1, 30, 30)
    stream.put(2, 30, 30)
    stream.merge(1, 2)
    stream.put(3, 30)
    async with Query(stream) as query:
        await until_read(query, horizon(stream), 10)
        assert [shard[-1] for shard, _ in query.rows] == list("0000011223") or [
            shard[-1] for shard, _ in query.rows
        ] == list("0000022113")


@scenario
async def test_the_run_says_how_far_it_is_behind_in_a_few_numbers() -> None:
    stream = ModelStream(shards=3)
    async with Query(stream) as query:
        stream.put(1, 30, 30)
        offset = horizon(stream)
        await until_read(query, offset, 2)
        feeds = {feed.key.shard: feed for feed in query.fetcher.feeds}
        stats = query._streams["orders"].subscriptions.stats
        for shard, behind in zip(sorted(feeds), (40, 700, 3), strict=True):
            stats[shard].millis_behind, stats[shard].last_event = behind, asyncio.get_running_loop().time()
        lag = query.run.lag("orders")
        assert (lag.shards, lag.millis_behind, lag.shard) == (3, 700, "shardId-000000000001")
        assert lag.buffered == query.fetcher.budget.used
        # A shard of which nothing is heard falls behind, whatever its last event said.
        stats["shardId-000000000002"].last_event = asyncio.get_running_loop().time() - 100
        assert query.run.lag("orders").shard == "shardId-000000000002"
        await asyncio.sleep(10)
        told = query.store.lease(run_key("orders")).lag
        assert told is not None
        assert told.shards == 3


@scenario
async def test_checkpoints_are_written_also_where_nobody_polls() -> None:
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
async def test_whatever_ends_the_watch_over_the_shards_reaches_the_query() -> None:
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
async def test_the_first_error_is_kept_and_ends_what_waits_at_once() -> None:
    stream = ModelStream(shards=2)
    async with Query(stream) as query:
        begin = horizon(stream)
        await query.poll(begin)
        key = next(iter(begin))
        reading = asyncio.create_task(query.read(ShardRange(key, begin[key], Position.after(10**30))))
        polling = asyncio.create_task(query.planner.poll(begin, NO_LIMIT, NO_LIMIT, 50.0))
        await asyncio.sleep(0.45)
        began = LoopClock().monotonic()
        query.fetcher._failed(DataLossError("first"))
        query.fetcher._failed(DataLossError("second"))
        for call in (reading, polling, query.leases.wait_held(["orders"]), query.commit(begin)):
            with pytest.raises(DataLossError, match=r"^first$"):
                await call
        assert LoopClock().monotonic() - began < 0.01
        query.run.lease_lost("orders", "somebody")
        with pytest.raises(DataLossError, match=r"^first$"):
            await query.poll(begin)


@pytest.mark.parametrize("listed", [False, True])
def test_rows_of_children_name_their_parents_and_hash_keys_also_before_they_are_listed(listed: bool) -> None:
    class Late(ModelStream):
        """Lists no children, or only after a while."""

        async def shards(self, stream_arn: str) -> list[Shard]:
            late = not listed or LoopClock().monotonic() < 1100
            return [shard for shard in await super().shards(stream_arn) if not (late and shard.parents)]

    async def main() -> None:
        stream = Late()
        stream.put(0, 30)
        stream.split(0)
        stream.put(1, 30)
        stream.put(2, 30)
        # A restart knows nothing of what the parent's last event announced.
        children = Offset({ShardKey("orders", f"shardId-{n:012d}"): TRIM_HORIZON for n in (1, 2)})
        async with Query(stream) as query:
            offset = await until_read(query, children if listed else horizon(stream), 2 if listed else 3)
            await asyncio.sleep(200)
            await query.poll(offset)
            await asyncio.sleep(20)
            for number in (1, 2):
                row = query.store.lease(f"orders:shardId-{number:012d}")
                assert row.parents == {"shardId-000000000000"}
                assert (row.starting_hash_key, row.ending_hash_key) == tuple(map(str, stream[number].hashes))

    run(asyncio.wait_for(main(), 3600))


def test_a_range_whose_end_never_comes_is_waited_for_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, 30)
        key = ShardKey("orders", "shardId-000000000000")
        async with Query(stream) as query:
            await query.poll(horizon(stream))
            task = asyncio.create_task(query.read(ShardRange(key, TRIM_HORIZON, Position.after(10**60), last=10**60)))
            await asyncio.sleep(25)
            assert warnings() == []
            stream[0].records.clear()
            # Idle events move the position every five seconds; from here on, none comes.
            stream._grow()
            query._streams["orders"].subscriptions.stats[key.shard].failures["TimeoutError"] = 2
            for events in stream._events.values():
                events._something_came = asyncio.Event().wait  # type: ignore[method-assign, assignment]
            await asyncio.sleep(105)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len(said := warnings()) == 3
        assert said[0].startswith(f"shard {key}: a task has waited for 3")
        assert f"which ends at AFTER:{10**60}: its subscription is " in said[0]
        assert "s ago; failures so far: TimeoutError " in said[0]

    def warnings() -> list[str]:
        return [line for line in caplog.messages if "a task has waited" in line]

    caplog.set_level("WARNING")
    run(asyncio.wait_for(main(), 3600))


def test_a_range_that_may_not_be_read_yet_is_waited_for_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stream = ModelStream(shards=1)
        stream.put(0, 30)
        query = Query(stream)
        query.leases.is_held = lambda _stream: False  # type: ignore[method-assign]
        async with query:
            key = ShardKey("orders", "shardId-000000000000")
            task = asyncio.create_task(query.read(ShardRange(key, TRIM_HORIZON, Position.after(1))))
            await asyncio.sleep(75)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        said = [line for line in caplog.messages if "a task has waited" in line]
        assert len(said) == 2
        assert (
            "at TRIM_HORIZON for the rest of its range, which ends at AFTER:1: the shard may not be read here"
            in said[0]
        )

    caplog.set_level("WARNING")
    run(asyncio.wait_for(main(), 3600))


@scenario
async def test_a_shard_that_appears_without_parents_is_read_although_no_other_has_ended() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, 30)
    async with Query(stream) as query:
        offset = await until_read(query, horizon(stream), 1)
        appeared = stream._add((0, 9))
        stream.put(2, 30, 30)
        offset = await asyncio.wait_for(until_read(query, offset, 3), 100)
        assert ShardKey("orders", appeared.shard_id) in offset
    # Also where the run that saw it come has ended.
    stream._add((0, 9))
    stream.put(3, 30)
    async with Query(stream) as query:
        await asyncio.wait_for(until_read(query, offset, 1), 100)


@scenario
async def test_a_shard_that_vanishes_unread_is_a_loss_at_the_next_listing() -> None:
    stream = ModelStream(shards=2)
    stream.put(1, 30)
    async with Query(stream) as query:
        offset = await until_read(query, horizon(stream), 1)
        del stream.shards_by_id["shardId-000000000000"]
        with pytest.raises(DataLossError, match="shardId-000000000000 does not exist any more"):
            await asyncio.wait_for(until_read(query, offset, 2, check=False), 100)


@scenario
async def test_a_shard_that_one_listing_leaves_out_is_read_on() -> None:
    class Forgetful(ModelStream):
        listings = 0

        async def shards(self, stream_arn: str) -> list[Shard]:
            self.listings += 1
            return (await super().shards(stream_arn))[self.listings == 2 :]

    stream = Forgetful(shards=2)
    async with Query(stream) as query:
        offset = await query.poll(horizon(stream))
        await asyncio.sleep(100)
        stream.put(0, 30)
        await until_read(query, offset, 1)
        assert stream.listings >= 3


@scenario
async def test_a_stream_that_is_created_again_while_it_is_read_is_noticed_at_the_next_listing() -> None:
    stream = ModelStream(shards=2)
    layout = 2 << 184 | 2
    stream._numbers = count(layout | 1_700_000_000 << 148, 16)
    stream.put(0, 30)
    async with Query(stream) as query:
        offset = await until_read(query, horizon(stream), 1)
        stream[0].first = layout | 1_700_005_000 << 148
        with pytest.raises(StreamReplacedError, match="was deleted and created again"):
            await asyncio.wait_for(until_read(query, offset, 2), 100)


@scenario
async def test_a_merged_child_waits_for_both_parents() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, 30)
    stream.put(1, *[30] * 9)
    stream.merge(0, 1)
    async with Query(stream) as query:
        offset = horizon(stream)
        child = ShardKey("orders", "shardId-000000000002")
        while child not in offset:
            before, offset = offset, await query.poll(offset, max_records=4)
            await query.commit(before)
        assert all(before.get(key, SHARD_END).is_end or offset[key].is_end for key in before)
        assert offset[child] == TRIM_HORIZON


@scenario
async def test_an_ended_parent_leaves_the_offset_and_its_lease_is_finished() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    stream.split(0)
    stream.put(1, 30)
    stream.put(2, 30)
    async with Query(stream) as query:
        offset = await until_read(query, horizon(stream), 3)
        while (end := await query.poll(offset)) != offset:
            await query.commit(end)
            offset = end
            if ShardKey("orders", "shardId-000000000000") not in offset:
                break
        await asyncio.sleep(20)
        parent = query.store.lease("orders:shardId-000000000000")
        assert parent.checkpoint == SHARD_END
        assert parent.owner is None
        assert parent.children == {"shardId-000000000001", "shardId-000000000002"}


@scenario
async def test_a_shard_that_has_ended_holds_no_records() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[300] * 20)
    async with Query(stream) as query:
        offset = await until_read(query, horizon(stream), 20)
        (feed,) = query.fetcher.feeds
        assert feed.buffer is not None
        buffer = weakref.ref(feed.buffer)
        del feed
        stream.split(0)
        while ShardKey("orders", "shardId-000000000000") in offset:
            offset = await query.poll(offset)
            await query.commit(offset)
        await asyncio.sleep(0.1)  # its task ends
        assert buffer() is None


@scenario
async def test_a_shard_that_was_left_behind_and_is_read_again_is_let_go_of_afterwards() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[300] * 20)
    async with Query(stream) as query:
        offset = await until_read(query, horizon(stream), 20)
        again = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, next(iter(offset.values())))
        stream.split(0)
        while again.key in offset:
            offset = await query.poll(offset)
            await query.commit(offset)
        await query.poll(offset)
        assert len(await query.read(again)) == 20
        await query.poll(offset)
        assert again.key not in {feed.key for feed in query.fetcher.feeds}
        await asyncio.sleep(1)
        assert not stream.open[again.key.shard], "its subscription is closed"


@scenario
async def test_a_parent_that_ended_before_a_crash_is_finished_after_it() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    stream.split(0)
    offset = Offset({ShardKey("orders", f"shardId-{n:012d}"): SHARD_END if n == 0 else TRIM_HORIZON for n in range(3)})
    stream.put(1, 30)
    async with Query(stream) as query:
        end = await query.poll(offset)
        while end == offset:
            end = await query.poll(offset)
        await query.commit(end)
        await asyncio.sleep(20)
        assert query.store.lease("orders:shardId-000000000000").checkpoint == SHARD_END


@scenario
async def test_a_range_is_read_again_after_it_was_dropped() -> None:
    """After an eviction, after a commit, and by two readers at once."""
    stream = ModelStream(shards=1, event_records=(1,))
    stream.put(0, *[3000] * 20)
    async with Query(stream, buffer_bytes=20_000) as query:
        offset = await until_read(query, horizon(stream), 20)
        first = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, Position.after(1100))
        whole = ShardRange(first.key, TRIM_HORIZON, offset[first.key])
        calls = len(stream.subscribed)
        one, two, three = await asyncio.gather(query.read(whole), query.read(whole, pause=0.1), query.read(first))
        assert one == two == expected(stream, whole)
        assert three == expected(stream, first)
        assert len(stream.subscribed) > calls
        assert query.most_used <= 20_000


@scenario
async def test_a_reader_that_goes_away_half_way_holds_nobody_up() -> None:
    stream = ModelStream(shards=1, event_records=(1,))
    stream.put(0, *[3000] * 40)
    async with Query(stream, buffer_bytes=20_000) as query:
        whole = ShardRange(
            ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, Position.after(stream[0].records[-1][0])
        )
        assert await query.read(whole, stop_after=3)
        assert await query.read(whole) == expected(stream, whole)


@scenario
async def test_a_poll_answers_as_soon_as_something_comes() -> None:
    stream = ModelStream(shards=2)
    async with Query(stream) as query:
        offset = horizon(stream)
        for _ in range(50):
            offset = await query.poll(offset)
        loop = asyncio.get_running_loop()
        asking = asyncio.ensure_future(query.planner.poll(offset, NO_LIMIT, NO_LIMIT, 100.0))
        await asyncio.sleep(1)
        put_at = loop.time()
        stream.put(1, 30)
        reply = await asking
        assert loop.time() == put_at
        assert sum(shard.records for shard in reply.shards) == 1


@scenario
async def test_a_lost_lease_ends_the_query() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    async with Query(stream) as query:
        offset = await until_read(query, horizon(stream), 1)
        item = query.store.items[run_key("orders")]
        item["leaseOwner"] = {"S": "thief"}
        item["leaseCounter"] = {"N": str(int(item["leaseCounter"]["N"]) + 1)}
        await asyncio.sleep(10)
        with pytest.raises(LeaseLostError, match="thief took the lease on stream orders while this query was reading"):
            await query.poll(offset)
        assert not stream.open["shardId-000000000000"], "reading goes on without a lease"
        with pytest.raises(LeaseLostError):
            await query.read(ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, Position.after(9999)))


@scenario
async def test_a_checkpoint_of_another_query_is_refused() -> None:
    async with Query(ModelStream()) as query:
        foreign = Offset({ShardKey("clicks", "shardId-000000000000"): TRIM_HORIZON})
        with pytest.raises(FetcherError, match="the checkpoint names stream 'clicks', but the query reads 'orders'"):
            await query.poll(foreign)


@scenario
async def test_a_lease_that_cannot_be_taken_fails_a_read_with_its_name() -> None:
    stream, store = ModelStream(), MemoryLeaseStore()
    async with Query(stream, store) as first:
        stream.put(0, 30)
        await until_read(first, horizon(stream), 1)
        async with Query(stream, store) as second:
            with pytest.raises(KinesisEfoError, match=r"already read by|could not be taken"):
                await second.read(
                    ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, Position.after(9999))
                )
        await until_read(first, horizon(stream), 2)


@scenario
async def test_tips_name_every_shard_the_query_will_come_to() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, 30)
    stream.split(0)
    async with Query(stream) as query:
        while (tips := await query.planner.tips(horizon(stream), 0.2)) is None:
            pass
        assert [key.shard[-1] for key in sorted(tips)] == ["0", "1", "2", "3"]
        assert tips[ShardKey("orders", "shardId-000000000000")] == SHARD_END
        assert all(tips[key].value > 1000 for key in sorted(tips)[1:])


@scenario
async def test_a_shard_that_is_said_to_be_behind_for_ever_ends_where_nothing_comes() -> None:
    class Lying(ModelStream):
        def behind(self, shard: ModelShard, position: int) -> int:
            return 1000

    stream = Lying(shards=1)
    stream.put(0, 30, 30)
    async with Query(stream) as query:
        begin = horizon(stream)
        began = LoopClock().monotonic()
        while (found := await query.planner.ends(begin, 1.0)) is None:
            pass
        assert 10 <= LoopClock().monotonic() - began < 20
        (end,) = found.ends.values()
        assert end is not None
        assert end.reaches(Position.after(stream[0].records[-1][0]))


@scenario
async def test_the_end_of_a_shard_that_closes_meanwhile_is_its_end() -> None:
    stream = ModelStream(shards=1)
    async with Query(stream) as query:
        begin = horizon(stream)
        assert await query.planner.ends(begin, 1.0) is None
        stream.split(0)
        while (found := await query.planner.ends(begin, 1.0)) is None:
            pass
        first = next(iter(begin))
        assert found.ends[first] == SHARD_END
        assert len(found.ends) == 3, "a list may be old: its children may have records from before the end"


@scenario
async def test_ended_shard_that_is_listed_as_open_has_no_tip() -> None:
    for bound in (None, Position.at_timestamp(1_700_000_995_000)):
        stream = ModelStream(shards=1)
        async with Query(stream, ends=Bounds(everywhere=bound)) as query:
            begin = Offset(dict.fromkeys(horizon(stream), SHARD_END))
            assert await query.planner.ends(begin, 1.0) is None, "its children are not listed yet"
            (first,) = begin
            stream.split(0)
            while (found := await query.planner.ends(begin, 1.0)) is None:
                pass
            assert found.ends[first] == SHARD_END
            assert first.shard not in [each[0] for each in stream.subscribed]


@scenario
async def test_a_query_that_begins_in_the_future_has_nothing_to_read_now() -> None:
    stream = ModelStream(shards=1)
    async with Query(stream) as query:
        (first,) = horizon(stream)
        begin = Offset({first: Position.at_timestamp(round((LoopClock().time() + 3600) * 1000))})
        assert await query.planner.ends(begin, 1.0) == EndPositions(dict(begin))


@scenario
async def test_shards_that_the_query_does_not_come_to_are_not_read_for_their_tips() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30, 30)
    stream.split(0)
    stream.put(1, 30)
    (first,) = horizon(stream)
    ends = Bounds(shards={first: Position.after(stream[0].records[0][0])})
    async with Query(stream, ends=ends) as query:
        begin = Offset({first: TRIM_HORIZON})
        while (tips := await query.planner.tips(begin, 0.2)) is None:
            pass
        assert dict(tips) == dict(ends.shards)
        assert stream.subscribed == []


@scenario
async def test_after_a_subscription_that_only_asks_the_next_counts_from_its_opening_too() -> None:
    stream = ModelStream(shards=1)
    async with Query(stream) as query:
        (first,) = horizon(stream)
        asked = query._streams["orders"]
        began = LoopClock().monotonic()
        for _ in range(2):
            await asked.tip(first.shard, TRIM_HORIZON)
        assert LoopClock().monotonic() - began == 2 * 2 * 5.0, "each is open for 10 s, until its second event"


@pytest.mark.parametrize("timed", [True, False])
def test_the_last_record_up_to_an_end_is_known_though_it_is_not_buffered_whatever_is_answered_then(
    timed: bool,
) -> None:
    @scenario
    async def test() -> None:
        stream = ModelStream(shards=1, event_records=(10,))
        stream.put(0, *[1000] * 200, arrived=LoopClock().time())
        await asyncio.sleep(5)
        ends = Bounds(everywhere=Position.at_timestamp(round(LoopClock().time() * 1000))) if timed else None
        async with Query(stream, buffer_bytes=30_000, ends=ends) as query:
            while (tips := await query.planner.tips(horizon(stream), 0.2)) is None:
                pass
            [wanted] = horizon(stream).ranges_to(tips)
            assert wanted.last == stream[0].records[-1][0]
        # Another run repeats it, beside a server that says again and again that nothing is left.
        stream.hidden = 7
        async with Query(stream, buffer_bytes=30_000) as query:
            assert await asyncio.wait_for(query.read(wanted), 300) == everything(stream)

    test()


@scenario
async def test_the_query_goes_on_from_where_it_asked_for_the_tips() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, 30)
    stream.split(0)
    async with Query(stream) as query:
        offset = horizon(stream)
        await query.poll(offset)
        while await query.planner.tips(offset, 0.2) is None:
            pass
        await query.poll(offset)
        await until_read(query, offset, 1)


@scenario
async def test_what_came_while_a_lease_seemed_lost_is_found_once_it_is_held() -> None:
    stream = ModelStream(shards=1)
    async with Query(stream) as query:
        offset = horizon(stream)
        await query.poll(offset)
        is_held = query.leases.is_held
        query.leases.is_held = lambda _stream: False  # type: ignore[method-assign]
        stream.put(0, 30)
        stream.split(0)
        await asyncio.sleep(60)
        assert (await query.planner.poll(offset, NO_LIMIT, NO_LIMIT, 0.2)).shards == []
        query.leases.is_held = is_held  # type: ignore[method-assign]
        await until_read(query, offset, 1)


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
