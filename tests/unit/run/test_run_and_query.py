"""What a run and its query do with each call, with a fetching that answers what a test says: the real streams, leases and table, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from random import Random
from typing import Any

import pytest

from kinesis_efo.decisions.losses import Known
from kinesis_efo.decisions.planning import ShardProgress
from kinesis_efo.errors import (
    DataLossError,
    FetcherError,
    FetcherUnreachableError,
    KinesisEfoError,
    LeaseLostError,
    StreamError,
)
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.feed import FetchCounts
from kinesis_efo.fetcher.fetcher import Coordinator
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.checkpoints import Checkpoints
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.renewal import Timing
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.run import RunLease
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import Bounds, RetrySettings
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Offset, Position, ShardKey, ShardRange
from kinesis_efo.records.distribution import Distribution
from kinesis_efo.run.query import Query
from kinesis_efo.run.run import Run
from tests.support.lease_store import MemoryLeaseStore, Network
from tests.support.model_stream import ModelStream
from tests.support.planned import finish
from tests.support.virtual_time import LoopClock, VirtualTimeLoop, run

REF = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")
SHARDS = [ShardKey("orders", f"shardId-00000000000{number}") for number in range(4)]
FIRST, SECOND = SHARDS[:2]
NO_LIMIT = 1 << 60
PATIENCE = 60.0


class Fetching:
    """Answers what a test says, and keeps what it was told.

    Attributes:
        told: The calls, in order.
        replies: The answers to the next polls; then nothing is new.
        before_reply: Called before the next poll is answered.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.replies: list[list[ShardProgress]] = []
        self.before_reply: Callable[[], None] = lambda: None
        self.coordinator: Coordinator
        self.shards: list[ShardStatus] = []
        self.tips: dict[ShardKey, Position] = {}
        self.lasts: dict[ShardRange, int] = {}
        self.records: dict[ShardKey, LastRecord] = {}
        self.until: float | None = None
        self.brought = FetchCounts()
        self.stopped = False
        self.failure = Failure()
        self.reading = self.is_apart = False
        self.lets_go = asyncio.Event()
        self.lets_go.set()

    def start(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    async def stop(self) -> None:
        self.stopped = True

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> list[ShardProgress]:
        self.told.append(("poll", offset, max_bytes, max_records, at_most))
        self.before_reply()
        return self.replies.pop(0) if self.replies else []

    def join(self, name: str, max_skew: float | None) -> Fetching:
        return self

    def follow(self, offset: Offset) -> None:
        self.told.append(("follow", offset))

    async def leave(self) -> None:
        self.told.append(("leave",))

    def commit(self, offset: Offset) -> Mapping[ShardKey, LastRecord]:
        self.told.append(("commit", offset))
        return self.records

    def last_record(self, wanted: ShardRange) -> int | None:
        return self.lasts.get(wanted)

    def begin(self, stream: str) -> None:
        self.told.append(("begin", stream))

    def end(self, stream: str) -> None:
        self.told.append(("end", stream))

    async def make_way(self, shards: Collection[ShardKey]) -> Mapping[ShardKey, Position]:
        self.told.append(("make way", sorted(shards)))
        await self.lets_go.wait()
        return self.tips

    def fetcher_of(self, key: ShardKey) -> str | None:
        return "0 on host0"

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        return self.shards

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        return self.until


class Centre:
    """A run, its query, and what they stand on."""

    def __init__(self, stream: ModelStream, ends: Bounds | None = None, store: MemoryLeaseStore | None = None) -> None:
        clock = LoopClock()
        self.stream = stream
        self.store = store or MemoryLeaseStore()
        self.network = Network(self.store, Random(1))
        self.fetching = Fetching()
        self.access = Stream(REF, stream, stream, RetrySettings(), "m.json", clock)
        self.streams = Streams({"orders": self.access})
        keys = LeaseKeys({"orders": "dev-orders"})
        self.leases = RunLease(self.network, "me", keys, Timing(10.0), clock, Random(1), application="lake")
        self.run = Run(self.streams, self.fetching, self.leases, self.network, keys, 25.0, PATIENCE, clock)
        self.query = Query(self.run, ends)

    async def __aenter__(self) -> Centre:
        await self.run.start("grpc://here")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.network.cut = False
        await self.run.stop()

    async def poll(self, offset: Offset, at_most: float = 0.0) -> Any:
        return await self.query.poll(offset, 10, 20, at_most)

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        return [each for each in self.fetching.told if each[0] in names]


def scenario(
    shards: int = 1, start: bool = True, **more: Any
) -> Callable[[Callable[[Centre], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in virtual time, with a run that holds its lease."""

    def wrap(test: Callable[[Centre], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def main() -> None:
            centre = Centre(ModelStream(shards=shards), **more)
            if not start:
                await test(centre)
                return
            async with centre:
                assert await centre.query.wait_held(10.0)
                await test(centre)

        def wrapped() -> None:
            run(asyncio.wait_for(main(), 3600))

        wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
        return wrapped

    return wrap


def progress(key: ShardKey, through: str, records: int = 1) -> ShardProgress:
    return ShardProgress(key, Position.parse(through), records, 100, 0)


ONE = Offset({FIRST: TRIM_HORIZON})


@scenario()
async def test_nothing_is_opened_after_a_stop_of_the_process_until_the_lease_is_held_again(centre: Centre) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    await centre.run.may_open(FIRST)
    loop.now += 30.0
    # The backoff of a subscription may be over before the time of the next renewal.
    await centre.run.may_open(FIRST)
    assert centre.leases.is_held("orders")
    assert centre.calls("begin", "end") == [("begin", "orders"), ("end", "orders"), ("begin", "orders")]


# -- polls


@scenario()
async def test_a_poll_is_answered_with_what_is_fetched(centre: Centre) -> None:
    told = [progress(FIRST, "AFTER:20")]
    centre.fetching.replies = [told]
    reply = await centre.poll(ONE, 5.0)
    assert (reply.shards, reply.starting, reply.finished) == (told, [], [])
    assert centre.calls("poll") == [("poll", ONE, 10, 20, 5.0)]


@scenario()
async def test_a_failure_ends_every_call_and_the_first_one_stays(centre: Centre) -> None:
    failure, query = centre.run.failure, centre.query
    failure.set(DataLossError("first"))
    failure.set(DataLossError("second"))
    listings = centre.access.listings
    calls: list[Coroutine[Any, Any, Any]] = [
        query.wait_held(5.0),
        centre.poll(ONE),
        query.check_replay(ONE, []),
        query.hash_ranges([FIRST]),
        query.ends(ONE, 5.0),
        query.tips(ONE, 5.0),
    ]
    for call in calls:
        with pytest.raises(DataLossError, match=r"^first$"):
            await call
    with pytest.raises(DataLossError, match=r"^first$"):
        query.last_records([])
    assert centre.calls("poll", "commit") == []
    assert centre.access.listings == listings, "nothing is looked for any more"
    centre.run.lease_lost("orders", "somebody")
    with pytest.raises(DataLossError, match=r"^first$"):
        await centre.poll(ONE)


@scenario()
async def test_a_failure_during_a_poll_is_not_answered_with_progress(centre: Centre) -> None:
    centre.fetching.replies = [[progress(FIRST, "AFTER:20")]]
    centre.fetching.before_reply = lambda: centre.run.failure.set(DataLossError("meanwhile"))
    with pytest.raises(DataLossError, match="meanwhile"):
        await centre.poll(ONE)


@scenario()
async def test_whoever_waits_for_a_lease_or_an_end_learns_of_a_failure_at_once(centre: Centre) -> None:
    centre.network.cut = True
    await asyncio.sleep(11)
    waiting = [asyncio.create_task(each) for each in (centre.query.wait_held(50.0), centre.query.ends(ONE, 50.0))]
    await asyncio.sleep(1)
    assert not any(task.done() for task in waiting)
    centre.run.failure.set(DataLossError("gone"))
    for task in waiting:
        with pytest.raises(DataLossError, match="gone"):
            async with asyncio.timeout(0.1):
                await task


@scenario(shards=2)
async def test_a_shard_that_vanishes_unread_fails_this_and_every_later_call(centre: Centre) -> None:
    both = Offset(dict.fromkeys((FIRST, SECOND), TRIM_HORIZON))
    await centre.poll(both)
    del centre.stream.shards_by_id[FIRST.shard]
    await centre.access.refresh()
    for _ in range(2):
        with pytest.raises(DataLossError, match="shardId-000000000000 does not exist any more"):
            await centre.poll(both)
    assert len(centre.calls("poll")) == 1, "a loss is seen before anything is planned"
    assert isinstance(centre.run.failure.error, DataLossError)


@scenario(shards=2)
async def test_a_loss_of_one_of_several_queries_fails_this_one_alone(centre: Centre) -> None:
    Query(centre.run)
    both = Offset(dict.fromkeys((FIRST, SECOND), TRIM_HORIZON))
    await centre.poll(both)
    del centre.stream.shards_by_id[FIRST.shard]
    await centre.access.refresh()
    with pytest.raises(DataLossError):
        await centre.poll(both)
    assert isinstance(centre.fetching.failure.error, DataLossError)
    assert centre.run.failure.error is None


@scenario()
async def test_children_start_with_the_micro_batch_that_ends_their_parent_and_it_leaves_with_the_next(
    centre: Centre,
) -> None:
    centre.stream.split(0)
    await centre.access.refresh()
    centre.fetching.replies = [[progress(FIRST, "SHARD_END", 0)]]
    reply = await centre.poll(ONE, 5.0)
    assert (reply.starting, reply.finished) == ([SHARDS[1], SHARDS[2]], [])
    ended = Offset({FIRST: SHARD_END})
    reply = await centre.poll(ended, 5.0)
    assert reply.starting == [SHARDS[1], SHARDS[2]], "as after a crash"
    assert [each[4] for each in centre.calls("poll")] == [5.0, 0.0], "nothing is waited for"
    all_three = Offset({FIRST: SHARD_END, SHARDS[1]: TRIM_HORIZON, SHARDS[2]: TRIM_HORIZON})
    reply = await centre.poll(all_three, 5.0)
    assert (reply.starting, reply.finished) == ([], [FIRST])
    assert centre.calls("poll")[-1][4] == 5.0


@scenario()
async def test_trimmed_parent_is_a_loss_before_its_child_starts(centre: Centre) -> None:
    centre.stream.split(0)
    centre.stream.split(1)
    for trimmed in (SHARDS[1], SHARDS[2]):
        del centre.stream.shards_by_id[trimmed.shard]
    await centre.access.refresh()
    await centre.poll(ONE)
    centre.fetching.replies = [[progress(FIRST, "SHARD_END", 0)]]
    with pytest.raises(DataLossError, match=f"{SHARDS[1].shard} does not exist any more, and was not read"):
        await centre.poll(ONE, 5.0)


@scenario()
async def test_a_shard_without_parents_that_appears_starts_although_none_has_ended(centre: Centre) -> None:
    await centre.poll(ONE)
    shard = centre.stream._add((0, 1))
    await centre.access.refresh()
    reply = await centre.poll(ONE, 5.0)
    assert reply.starting == [("orders", shard.shard_id)]
    assert centre.calls("poll")[-1][4] == 0.0


# -- checkpoints


@scenario()
async def test_what_is_committed_is_written_with_its_last_record(centre: Centre) -> None:
    await centre.poll(ONE)
    centre.fetching.records = {FIRST: LastRecord(18)}
    finish(centre.query, Offset({FIRST: Position.after(20)}))
    await asyncio.sleep(6)
    row = centre.store.lease(f"orders:{FIRST.shard}")
    assert (row.position, row.record, row.fetcher) == (Position.after(20), 18, "0 on host0")


@scenario()
async def test_the_one_micro_batch_of_a_query_that_never_polls_is_written_too(centre: Centre) -> None:
    finish(centre.query, Offset({FIRST: Position.after(20)}))
    await asyncio.sleep(6)
    assert centre.store.lease(f"orders:{FIRST.shard}").position == Position.after(20)


@scenario()
async def test_a_shard_that_has_ended_is_finished_with_its_children(centre: Centre) -> None:
    centre.stream.split(0)
    await centre.access.refresh()
    await centre.poll(ONE)
    finish(centre.query, Offset({FIRST: SHARD_END}))
    await asyncio.sleep(6)
    row = centre.store.lease(f"orders:{FIRST.shard}")
    assert (row.position, row.children) == (SHARD_END, {SHARDS[1].shard, SHARDS[2].shard})


def test_first_micro_batch_in_a_run_moves_all_rows() -> None:
    """The run before may have died before it wrote the rows of shards that are idle now."""
    store = MemoryLeaseStore()
    key = f"orders:{SECOND.shard}"
    store.items[key] = Lease(key, checkpoint=Position.after(10), counter=7).to_item()

    @scenario(store=store)
    async def test(centre: Centre) -> None:
        await centre.poll(Offset({FIRST: Position.after(20), SECOND: Position.after(30)}))
        finish(centre.query, Offset({FIRST: Position.after(40), SECOND: Position.after(30)}))
        await asyncio.sleep(6)
        assert store.lease(key).position == Position.after(30)

    test()


def test_the_rows_of_earlier_runs_are_read_when_the_lease_is_taken() -> None:
    store = MemoryLeaseStore()
    key = f"orders:{FIRST.shard}"
    before = Lease(key, checkpoint=Position.after(50), counter=7)
    store.items[key] = before.to_item()

    @scenario(store=store)
    async def test(centre: Centre) -> None:
        await centre.poll(Offset({FIRST: Position.after(30)}))
        finish(centre.query, Offset({FIRST: Position.after(40)}))
        await asyncio.sleep(6)
        kept = store.lease(key).checkpoint
        assert kept is not None
        assert kept.value == 50, "a checkpoint never steps back"
        assert centre.network.requests["create"] == 1, (
            "the run's own; who had not read the rows would try to create this one"
        )

    test()


def test_shards_are_named_for_their_rows_when_they_change_or_more_is_known_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of shards would be named with each micro-batch."""
    named: list[list[ShardKey]] = []
    want = Checkpoints.want

    def noted(self: Checkpoints, shards: Mapping[ShardKey, LeaseInfo]) -> None:
        named.append(sorted(shards))
        want(self, shards)

    monkeypatch.setattr(Checkpoints, "want", noted)

    @scenario()
    async def test(centre: Centre) -> None:
        await centre.poll(ONE)
        await centre.poll(ONE)
        await centre.poll(Offset({FIRST: Position.after(20)}))
        assert named == [[FIRST]]
        await centre.poll(Offset({}))
        assert named[1:] == [[]]
        # A restart from a child that no listing has yet.
        centre.stream.split(0)
        child = Offset({SHARDS[1]: TRIM_HORIZON, SHARDS[2]: TRIM_HORIZON})
        centre.access.check_loss = centre.access.check_position = nothing_lost  # type: ignore[method-assign]
        await centre.poll(child)
        await centre.poll(child)
        assert named[2:] == [[SHARDS[1], SHARDS[2]]]
        await centre.access.refresh()
        await centre.poll(child)
        await centre.poll(child)
        assert named[3:] == [[SHARDS[1], SHARDS[2]]], "once their parents and hash keys are known"

    test()


async def nothing_lost(*_: object, **__: object) -> None:
    """Instead of `Stream.check_loss`, which lists again where shards are missing."""


@scenario()
async def test_losses_are_looked_for_when_an_offset_names_other_shards_and_after_each_listing(centre: Centre) -> None:
    """With each poll, thousands of shards would be compared. Only the first look after a start knows no earlier one."""
    looked: list[list[str]] = []
    entered: list[str] = []

    async def look(positions: Mapping[str, Position], *_: object) -> None:
        looked.append(sorted(positions))

    async def enter(shard: str, _position: Position, _known: Known, *, planned: bool) -> None:
        assert not planned
        entered.append(shard)

    centre.access.check_loss = look  # type: ignore[method-assign]
    centre.access.check_position = enter  # type: ignore[method-assign]
    await centre.poll(ONE)
    await centre.poll(Offset({FIRST: Position.after(20)}))
    assert looked == [[FIRST.shard]]
    await centre.access.refresh()
    await centre.poll(Offset({FIRST: Position.after(20)}))
    assert looked[1:] == [[FIRST.shard]]
    await centre.poll(Offset({FIRST: Position.after(20), SECOND: TRIM_HORIZON}))
    assert entered == [FIRST.shard, SECOND.shard], "each once, when it enters the offset at the horizon"
    other = Query(centre.run)
    await other.poll(ONE, 10, 20, 0.0)
    assert entered[2:] == [FIRST.shard], "another query has looked at nothing yet"


@scenario()
async def test_shards_that_a_checkpoint_has_passed_are_not_read_again_although_no_listing_has_their_children_yet(
    centre: Centre,
) -> None:
    centre.stream.split(0)
    centre.stream.split(2)
    listings = centre.access.listings
    offset = Offset({SHARDS[1]: TRIM_HORIZON, SHARDS[2]: SHARD_END})
    reply = await centre.poll(offset)
    assert [key.shard[-1] for key in reply.starting] == ["3", "4"]
    await centre.poll(offset)
    assert centre.access.listings == listings + 1


# -- the run's lease


@scenario(start=False)
async def test_streams_are_begun_once_their_lease_is_held_and_ended_when_it_is_gone(centre: Centre) -> None:
    async with centre:
        assert centre.calls("begin") == []
        assert not centre.run.may_read(FIRST)
        assert await centre.query.wait_held(10.0) is True
        assert centre.calls("begin", "end") == [("begin", "orders")]
        assert centre.run.may_read(FIRST)
        centre.network.cut = True
        await asyncio.sleep(11)
        assert centre.calls("begin", "end") == [("begin", "orders"), ("end", "orders")]
        assert not centre.run.may_read(FIRST)
        assert await centre.query.wait_held(1.0) is False
        assert centre.run.failure.error is None, "it may come back"
        centre.network.cut = False
        assert await centre.query.wait_held(30.0) is True
        assert centre.calls("begin", "end")[2:] == [("begin", "orders")]


def test_run_logs_what_it_reads_once_the_lease_is_held(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kinesis_efo.run")

    @scenario(start=False)
    async def test(centre: Centre) -> None:
        async with centre:
            assert caplog.messages == [], "a run that is refused reads nothing"
            assert await centre.query.wait_held(10.0) is True
            assert caplog.messages == ["this run reads stream orders: it holds the lease"]

    test()


@scenario()
async def test_a_lease_that_another_run_took_ends_the_query(centre: Centre) -> None:
    centre.run.lease_lost("orders", "other-host/1/abc")
    assert centre.calls("end") == [("end", "orders")]
    with pytest.raises(LeaseLostError, match="took the lease on stream orders while this query was reading"):
        await centre.poll(ONE)


@scenario()
async def test_a_lease_that_is_taken_while_the_query_stops_begins_nothing(centre: Centre) -> None:
    centre.run.failure.stop()
    centre.run.lease_taken("orders", {})
    assert centre.calls("begin") == [("begin", "orders")], "the one at the start"


@scenario(start=False)
async def test_stopping_ends_what_is_under_way_and_gives_the_lease_back(centre: Centre) -> None:
    async with centre:
        assert await centre.query.wait_held(10.0)
        await centre.poll(ONE)
        centre.fetching.lets_go.clear()
        assert await centre.query.ends(ONE, 1.0) is None
        await centre.run.stop()
        with pytest.raises(FetcherUnreachableError, match="its query has ended"):
            await centre.poll(ONE)
        assert centre.fetching.stopped
        assert "ends" not in {task.get_name() for task in asyncio.all_tasks()}
    assert centre.store.lease(run_key("orders")).owner is None


@scenario()
async def test_a_failure_while_the_ends_are_looked_for_is_told_with_this_call(centre: Centre) -> None:
    centre.fetching.lets_go.clear()
    asking = asyncio.create_task(centre.query.ends(ONE, 5.0))
    await asyncio.sleep(1)
    centre.run.failure.set(DataLossError("meanwhile"))
    with pytest.raises(DataLossError, match="meanwhile"):
        await asking


@scenario()
async def test_a_fetching_that_does_not_stop_holds_up_the_end_for_two_seconds(centre: Centre) -> None:
    centre.fetching.stop = asyncio.Event().wait  # type: ignore[method-assign, assignment]
    began = LoopClock().monotonic()
    await centre.run.stop()
    assert 2 <= LoopClock().monotonic() - began < 2.5
    assert centre.store.lease(run_key("orders")).owner is None


@scenario()
async def test_a_read_that_waits_in_vain_is_told_about_the_lease(centre: Centre) -> None:
    refused = centre.run.refusal(FIRST, 12.3)
    assert isinstance(refused, FetcherError)
    assert str(refused).startswith("the lease on stream orders could not be taken within 12 s: another run holds it")


# -- what else is asked


@scenario()
async def test_tools_are_told_how_far_each_shard_is_processed(centre: Centre) -> None:
    keys = (FIRST, SECOND)
    centre.fetching.shards = [ShardStatus(*key, "AFTER:50", 0, 0, None, 0) for key in keys]
    assert [each.done for each in await centre.run.status()] == [None, None]
    await centre.poll(ONE)
    assert [each.done for each in await centre.run.status()] == ["TRIM_HORIZON", None]
    finish(centre.query, Offset({FIRST: Position.after(20)}))
    centre.query.progress.plan(Offset({FIRST: Position.after(40)}))
    assert [(each.key, each.done) for each in await centre.run.status()] == [(FIRST, "AFTER:20"), (SECOND, None)]


@scenario()
async def test_what_is_processed_is_counted_once_also_of_a_shard_that_has_ended(centre: Centre) -> None:
    both = Offset(dict.fromkeys((FIRST, SECOND), TRIM_HORIZON))
    centre.fetching.replies = [[progress(FIRST, "SHARD_END", 3), progress(SECOND, "AFTER:20", 4)]]
    await centre.poll(both)
    finish(centre.query, Offset({SECOND: Position.after(10)}))
    finish(centre.query, Offset({SECOND: Position.after(20)}))
    told = centre.query.status(stream="none of its shards")
    assert (told.records_done, told.bytes_done) == (3, 100), "what was planned beyond the micro-batch is planned again"


@scenario()
async def test_the_last_records_of_ranges_are_told_as_far_as_they_are_buffered(centre: Centre) -> None:
    ranges = [ShardRange(key, TRIM_HORIZON, Position.after(20)) for key in (FIRST, SECOND)]
    centre.fetching.lasts = {ranges[0]: 18}
    assert centre.query.last_records(ranges) == {FIRST: 18}


@scenario()
async def test_aggregates_are_left_out_of_streams_whose_records_have_keys(centre: Centre) -> None:
    assert await centre.query.hash_ranges([FIRST]) == {FIRST: centre.stream[0].hashes}
    centre.stream.distributes = Distribution.AUTO
    await asyncio.sleep(6)
    assert await centre.query.hash_ranges([FIRST]) == {}


@scenario()
async def test_a_range_of_a_former_run_of_which_records_are_gone_ends_the_query(
    centre: Centre,
) -> None:
    asked: list[tuple[str, Position]] = []

    async def check(shard: str, position: Position, _known: Known, *, planned: bool) -> None:
        assert planned
        asked.append((shard, position))
        if len(asked) > 2:
            raise DataLossError("its beginning is gone")

    centre.access.check_position = check  # type: ignore[method-assign]
    begun = ShardRange(SECOND, Position.after(10), Position.after(20))
    wanted = [begun, ShardRange(FIRST, TRIM_HORIZON, Position.after(20))]
    await centre.query.check_replay(ONE, wanted)
    assert centre.calls("follow") == [("follow", ONE)], "what its tasks need is kept before its first poll"
    assert asked == [(SECOND.shard, Position.after(10)), (FIRST.shard, TRIM_HORIZON)]
    for _ in range(2):
        with pytest.raises(DataLossError, match="its beginning is gone"):
            await centre.query.check_replay(ONE, wanted)
    assert len(asked) == 4, "one error names all losses, and they are not asked for again"


@scenario()
async def test_the_time_up_to_which_a_shard_was_read_comes_from_its_row(centre: Centre) -> None:
    centre.fetching.until = 1_700_000_000.0
    await centre.poll(ONE)
    finish(centre.query, Offset({FIRST: Position.after(20)}))
    await asyncio.sleep(6)
    assert centre.run.known(FIRST, Position.after(20)) == Known(1_700_000_000.0)
    assert centre.run.known(SECOND, Position.after(20)) == Known()


# -- where a query ends


@scenario(start=False)
async def test_tips_are_asked_for_only_with_the_lease(centre: Centre) -> None:
    other = Lease(run_key("orders"), checkpoint=None).taken("other-host/1/abc", "grpc://there", 3, None)
    centre.store.items[other.key] = other.to_item()
    async with centre:
        asking = asyncio.create_task(centre.query.ends(ONE, 50.0))
        await asyncio.sleep(5)
        assert centre.calls("make way") == [], "it would end the other run's subscriptions"
        assert not asking.done()
        assert await asking is not None, "the other lease has expired"
        assert centre.calls("make way") == [("make way", [FIRST])]


@scenario(start=False)
async def test_a_lease_that_cannot_be_had_is_waited_for_for_as_long_as_patience_lasts(centre: Centre) -> None:
    async with centre:
        await centre.query.wait_held(10.0)
        centre.network.cut = True
        await asyncio.sleep(11)
        began = LoopClock().monotonic()
        with pytest.raises(KinesisEfoError, match="is not held after 60 s"):
            await centre.query.ends(ONE, 100.0)
        assert LoopClock().monotonic() - began == pytest.approx(PATIENCE, abs=0.1)


@scenario(shards=2)
async def test_the_ends_are_those_of_the_shards_as_they_are_listed_then(centre: Centre) -> None:
    centre.stream.split(1)  # after the start, so that only another listing tells it
    both = Offset(dict.fromkeys((FIRST, SECOND), TRIM_HORIZON))
    centre.fetching.tips = dict.fromkeys((FIRST, *SHARDS[2:]), Position.after(70))
    found = await centre.query.ends(both, 5.0)
    assert found is not None
    assert dict(found.ends) == {**centre.fetching.tips, SECOND: SHARD_END}


@scenario()
async def test_rows_are_wanted_of_a_query_that_asks_for_its_end_before_it_polls(centre: Centre) -> None:
    await centre.query.ends(ONE, 5.0)
    await asyncio.sleep(6)
    assert centre.store.lease(f"orders:{FIRST.shard}").position == TRIM_HORIZON


@scenario()
async def test_tips_come_with_their_last_records_and_the_next_call_looks_anew(centre: Centre) -> None:
    centre.stream.put(0, 30, 30, 30, arrived=LoopClock().time())
    last = centre.stream[0].records[-1][0]
    tips = await centre.query.tips(ONE, 60.0)
    assert tips is not None
    assert tips.lasts == {FIRST: last}
    centre.fetching.tips = {FIRST: tips[FIRST]}
    assert dict(await centre.query.tips(tips, 5.0) or {}) == dict(tips), "nothing is read of it"
    assert len(centre.calls("make way")) == 2, "the tips as they are now"


@scenario()
async def test_tips_that_are_not_known_yet_are_asked_for_again(centre: Centre) -> None:
    centre.fetching.lets_go.clear()
    began = LoopClock().monotonic()
    assert await centre.query.tips(ONE, 2.0) is None
    assert LoopClock().monotonic() - began == pytest.approx(2.0, abs=0.01)
    assert await centre.query.tips(ONE, 2.0) is None
    assert len(centre.calls("make way")) == 1, "the same question goes on"


@scenario(ends=Bounds(everywhere=Position.after(30)))
async def test_tip_beyond_the_given_end_changes_nothing(centre: Centre) -> None:
    centre.fetching.tips = {FIRST: Position.after(31)}
    assert await centre.query.tips(ONE, 1.0) == Offset({FIRST: Position.after(30)})
    at_end = Offset({FIRST: Position.after(30)})
    assert await centre.query.tips(at_end, 1.0) == at_end
    assert centre.calls("make way") == [("make way", [FIRST])]


@scenario()
async def test_a_tip_that_cannot_be_asked_for_is_an_error(centre: Centre) -> None:
    async def refuse(*_: object, apart: bool) -> None:
        assert not apart
        raise StreamError("no")

    centre.access.tip = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(StreamError, match="no"):
        await centre.query.tips(ONE, 60.0)


# -- a new query, where the application has read before


def read_before() -> MemoryLeaseStore:
    store = MemoryLeaseStore()
    for key in SHARDS[:2]:
        lease = Lease(str(key), checkpoint=Position.after(10))
        store.items[lease.key] = lease.to_item()
    return store


async def warned(centre: Centre, caplog: pytest.LogCaptureFixture, *others: Callable[[Centre], Any]) -> int:
    """The number of warnings once two new queries have each had two micro-batches, after what others did."""
    for do in others:
        if asyncio.iscoroutine(doing := do(centre)):
            await doing
    with caplog.at_level(logging.WARNING):
        for query in (centre.query, Query(centre.run, name="second")):
            query.begins(["orders"], from_leases=False)
            for number in (20, 21):
                finish(query, Offset(dict.fromkeys(SHARDS[:2], Position.after(number))))
    return sum("this query is new, without a checkpoint" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], 1),
        ([lambda centre: Query(centre.run, name="old").resume(Offset({FIRST: Position.after(10)}))], 0),
        ([lambda centre: Query(centre.run, name="leases").begins(["orders"], from_leases=True)], 0),
        ([lambda centre: Query(centre.run, name="clicks").begins(["clicks"], from_leases=True)], 1),
    ],
)
def test_a_new_query_warns_once_for_all_unless_another_one_goes_on_from_where_the_application_had_read(
    others: list[Callable[[Centre], Any]], expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario(shards=2, store=read_before())
    async def main(centre: Centre) -> None:
        assert await warned(centre, caplog, *others) == expected

    main()


def test_a_new_query_where_nothing_was_read_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    @scenario(shards=2)
    async def main(centre: Centre) -> None:
        assert await warned(centre, caplog) == 0

    main()


def test_a_query_that_goes_on_in_another_run_is_not_new(caplog: pytest.LogCaptureFixture) -> None:
    @scenario(shards=2, store=read_before())
    async def main(centre: Centre) -> None:
        with caplog.at_level(logging.WARNING):
            finish(centre.query, Offset(dict.fromkeys(SHARDS[:2], Position.after(20))))
        assert not caplog.messages

    main()
