"""What a run and its query do with each call, with the real fetcher, streams, leases and table, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kinesis_efo import __version__
from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.decisions.losses import Facts
from kinesis_efo.decisions.progress import Progress
from kinesis_efo.errors import AccessRefusedError, DataLossError, FetcherError
from kinesis_efo.fetcher.work import Order, RowKey, WorkRequest
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.run.query import Query as Planning
from kinesis_efo.run.run import Elsewhere
from kinesis_efo.run.table import Table
from tests.support.lease_store import MemoryLeaseStore
from tests.support.messages import raises
from tests.support.model_stream import ModelStream
from tests.support.modelled import Query
from tests.support.planned import finish
from tests.support.virtual_time import LoopClock

SHARDS = [ShardKey("orders", f"shardId-00000000000{number}") for number in range(4)]
FIRST, SECOND = SHARDS[:2]
PATIENCE = 60.0


async def poll(centre: Query, offset: Offset, at_most: float = 0.0) -> Any:
    return await centre.planner.poll(offset, 10, 20, at_most)


@asynccontextmanager
async def started(shards: int = 1, **more: Any) -> AsyncIterator[Query]:
    """A run that has its lease."""
    async with Query(ModelStream(shards=shards), patience=PATIENCE, **more) as centre:
        assert await centre.planner.wait_held(10.0)
        yield centre


ONE = Offset({FIRST: TRIM_HORIZON})


async def test_first_failure_ends_every_call() -> None:
    async with started() as centre:
        failure, query = centre.run.failure, centre.planner
        failure.set(DataLossError("first"))
        failure.set(DataLossError("second"))
        listings = centre.access.listings
        calls: list[Coroutine[Any, Any, Any]] = [
            query.wait_held(5.0),
            poll(centre, ONE),
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
        assert centre.access.listings == listings, "nothing is looked for any more"
        centre.run.lease_lost("orders", "somebody")
        with pytest.raises(DataLossError, match=r"^first$"):
            await poll(centre, ONE)


async def test_task_of_an_outdated_range_fails_with_the_reason() -> None:
    async with started() as centre:
        await poll(centre, ONE)
        with raises(
            FetcherError,
            "shard orders:shardId-000000000001: nothing was fetched for a task for 60 s, because its query does not need the task's range. "
            "Nothing was lost: Spark retries tasks that it needs",
        ):
            await anext(centre.run.serving.of("query").read(ShardRange(SECOND, TRIM_HORIZON, Position.after(10))))


async def test_row_is_read_again_after_a_late_renewal() -> None:
    async with started() as centre:
        held = True
        table, reached = Table(centre.run.fetcher, centre.run.clock, lambda _: held, lambda _: None), Progress()
        table.join("query", reached, None, lambda: None)
        reached.begin(ONE)
        table.update_orders(ONE)
        held = False
        table.update_orders(ONE)
        assert not table.shared
        held = True
        table.tick()
        assert FIRST in table.shared


async def test_task_moves_the_buffer_of_only_its_next_shard() -> None:
    """Otherwise, a task that waits for one shard takes the others again and again from the tasks that read them."""
    async with started() as centre:
        table = Table(centre.run.fetcher, centre.run.clock, lambda _: True, lambda _: None)
        table.forbid_polling(AccessRefusedError("denied"))
        start = dict.fromkeys((FIRST, SECOND), Position.after(50))
        for name, begin in (("ahead", start), ("behind", dict.fromkeys(start, TRIM_HORIZON))):
            table.join(name, progress := Progress(), None, lambda: None)
            progress.begin(Offset(begin))
            progress.plan(Offset(dict.fromkeys(start, Position.after(100))))
            table.update_orders(start)
        for key in start:
            table.shared[key].index.append(60, 100, 1, centre.run.clock.monotonic())
        await asyncio.sleep(6.0)
        for in_turn, second in ((True, start[SECOND]), (False, TRIM_HORIZON)):
            table.find("behind", dict.fromkeys(start, TRIM_HORIZON), in_turn=in_turn)
            assert [table.shared[key].start for key in start] == [TRIM_HORIZON, second]


async def test_subscription_that_moves_often_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Each time, the shard's records are delivered and charged for again, and each query waits for the others."""

    async with started() as centre:
        table = Table(centre.run.fetcher, centre.run.clock, lambda _: True, lambda _: None)
        table.forbid_polling(AccessRefusedError("denied"))
        starts = {"behind": TRIM_HORIZON, "ahead": Position.after(50)}
        for name, begin in starts.items():
            table.join(name, progress := Progress(), None, lambda: None)
            progress.begin(Offset({FIRST: begin}))
            progress.plan(Offset({FIRST: Position.after(100)}))
        for turn in range(12):
            assert ("has moved 10 times between queries" in caplog.text) is (turn == 11)
            name = list(starts)[turn % 2]
            table.find(name, {FIRST: starts[name]})
            await asyncio.sleep(6.0)
            table.shared[FIRST].index.append(60 + turn, 100, 1, centre.run.clock.monotonic())


async def test_order_without_the_lease_is_carried_out_later() -> None:
    async with started() as centre:
        row, fetcher = RowKey(None, FIRST), centre.run.fetcher
        centre.stream.put(0, 10)
        centre.network.cut = True
        await asyncio.sleep(30.0)
        assert not centre.run.may_read(FIRST)
        fetcher.apply_orders({row: Order(1, TRIM_HORIZON, TRIM_HORIZON, [])})
        centre.network.cut = False
        await asyncio.sleep(60.0)
        assert (feed := fetcher.feed(row)) is not None
        assert feed.buffer is not None
        assert feed.buffer.records == 1


async def test_losses_are_checked_at_new_shards_and_listings() -> None:
    """With each poll, thousands of shards would be compared. Only the first look after a start knows no earlier one."""
    async with started() as centre:
        looked: list[list[str]] = []
        entered: list[str] = []

        async def look(positions: Mapping[str, Position], *_: object) -> None:
            looked.append(sorted(positions))

        async def enter(shard: str, _position: Position, _known: Facts, *, planned: bool) -> None:
            assert not planned
            entered.append(shard)

        centre.access.check_loss = look  # type: ignore[method-assign]
        centre.access.check_position = enter  # type: ignore[method-assign]
        await poll(centre, ONE)
        await poll(centre, Offset({FIRST: Position.after(20)}))
        assert looked == [[FIRST.shard]]
        await centre.access.refresh()
        await poll(centre, Offset({FIRST: Position.after(20)}))
        assert looked[1:] == [[FIRST.shard]]
        await poll(centre, Offset({FIRST: Position.after(20), SECOND: TRIM_HORIZON}))
        assert entered == [FIRST.shard, SECOND.shard], "each once, when it enters the offset at the horizon"
        other = Planning(centre.run)
        await other.poll(ONE, 10, 20, 0.0)
        assert entered[2:] == [FIRST.shard], "another query has looked at nothing yet"


async def test_tools_see_the_progress_of_each_shard() -> None:
    async with started() as centre:
        assert await centre.run.status() == []
        await poll(centre, ONE)
        assert [each.done for each in await centre.run.status()] == ["TRIM_HORIZON"]
        finish(centre.planner, Offset({FIRST: Position.after(20)}))
        centre.planner.progress.plan(Offset({FIRST: Position.after(40)}))
        assert [(each.key, each.done) for each in await centre.run.status()] == [(FIRST, "AFTER:20")]


async def test_events_are_dropped_once_every_query_has_processed_them() -> None:
    async with started() as centre:
        centre.stream.put(0, 10, 10)
        other = Planning(centre.run, name="other")
        await other.poll(ONE, 10, 20, 0.0)
        (shard,) = (await poll(centre, ONE, 5.0)).shards
        end, (feed,) = Offset({FIRST: shard.through}), centre.run.fetcher
        assert feed.buffer is not None
        finish(centre.planner, end)
        assert feed.buffer.held
        assert feed.buffer._retained == {"query": end[FIRST], "other": TRIM_HORIZON}
        finish(other, end)
        assert not feed.buffer.held


# -- a new query, where the application has read before


def read_before() -> MemoryLeaseStore:
    store = MemoryLeaseStore()
    for key in SHARDS[:2]:
        lease = Lease(str(key), checkpoint=Position.after(10))
        store.items[lease.key] = lease.to_item()
    return store


async def warned(centre: Query, caplog: pytest.LogCaptureFixture, *others: Callable[[Query], Any]) -> int:
    """The number of warnings once two new queries have each had two micro-batches, after what others did."""
    for do in others:
        if asyncio.iscoroutine(doing := do(centre)):
            await doing
    with caplog.at_level(logging.WARNING):
        for query in (centre.planner, Planning(centre.run, name="second")):
            query.resumption.mark_new(["orders"], from_leases=False)
            for number in (20, 21):
                finish(query, Offset(dict.fromkeys(SHARDS[:2], Position.after(number))))
    return sum("this query is new, without a checkpoint" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], 1),
        ([lambda centre: Planning(centre.run, name="old").resume(Offset({FIRST: Position.after(10)}))], 0),
        ([lambda centre: Planning(centre.run, name="leases").resumption.mark_new(["orders"], from_leases=True)], 0),
        ([lambda centre: Planning(centre.run, name="clicks").resumption.mark_new(["clicks"], from_leases=True)], 1),
    ],
)
async def test_new_query_warns_once_unless_another_continues(
    others: list[Callable[[Query], Any]], expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(shards=2, store=read_before()) as centre:
        assert await warned(centre, caplog, *others) == expected


async def test_joining_query_is_compared_with_the_runs_rows(caplog: pytest.LogCaptureFixture) -> None:
    async with started(store=read_before()) as centre:
        Planning(centre.run, name="later").resume(Offset({FIRST: Position.after(5)}))
    assert sum("give it a new output directory" in message for message in caplog.messages) == 1


async def _is_gone(_: FetcherAddress) -> bool:
    return True


async def test_stop_does_not_wait_for_dead_fetchers() -> None:
    async with started(elsewhere=Elsewhere(10.0, gone=_is_gone)) as centre:
        assert centre.run.assignments is not None
        request = WorkRequest("f", 0, "host", FetcherAddress("host", 1), 1 << 20, 0, 0, 0.0, version=__version__)
        assert (await centre.run.assignments.work(request)).standing == "working"
        await asyncio.sleep(1.2)
        before = LoopClock().monotonic()
        await centre.run.stop()
        assert LoopClock().monotonic() - before < 1.0


async def test_silent_shard_has_the_lag_of_its_silence() -> None:
    async with started(shards=2) as centre:
        both = Offset({FIRST: TRIM_HORIZON, SECOND: TRIM_HORIZON})
        await poll(centre, both)
        now = centre.run.clock.monotonic()
        for key, reported_at in ((FIRST, now - 9.0), (SECOND, now - 60.0)):
            row = centre.run.table.shared[key]
            row.behind, row.reported_at = 500, reported_at
        assert centre.planner.silent(both) == {SECOND: 60_500}
