"""The buffer of one shard: what it covers, how it is cut, who makes whom wait."""

import asyncio

import pytest

from kinesis_efo.decisions.event_index import Portion
from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.positions import LastRecord, ShardKey
from kinesis_efo.records.events import Event, EventHead
from tests.support.fetched import (
    EVENT_OVERHEAD,
    SHARD_END,
    TRIM_HORIZON,
    after,
    buffer,
    event,
    event_with,
    fill,
    idle,
    run,
    settle,
)

SIZE = EVENT_OVERHEAD + 100
KEY = ShardKey("orders", "shardId-000000000000")
NO_LIMIT = 1 << 60


def test_record_is_known_at_which_a_query_has_ended() -> None:
    b = buffer()
    fill(b, event_with(15, 11, 12), event_with(30, 22, 28))
    for through, record in ((12, 12), (14, 12), (15, 12), (28, 28), (29, 28)):
        b.drop_before(after(through), {})
        assert b.last_record_up_to(after(through)) == LastRecord(record)
    assert b.last_record_up_to(after(31)) is None, "what may still come is not known"


def test_query_behind_the_buffer_skips_no_record() -> None:
    b = buffer()
    fill(b, event_with(15, 11, 12), event_with(30, 22, 28), event_with(45, 41))
    b.drop_before(after(30), {})
    assert b.last_record_up_to(after(15)) is None


def test_event_that_came_twice_takes_no_room() -> None:
    b = buffer()
    fill(b, event(10), event(20))
    b.drop_before(after(20), {})
    fill(b, event(20))
    assert b.held == 0 and b.covers(after(20))


# Shows 48.
def test_idle_events_move_the_end_and_take_no_room() -> None:
    b = buffer(limit=10)
    fill(b, *map(idle, range(1, 200)))
    assert b.portion(TRIM_HORIZON, 0, 0) == Portion(after(199), 0, 0)
    assert len(b) - b.gone == 1
    assert b.news_since(TRIM_HORIZON) is None


# Shows 41.
def test_a_cursor_refuses_to_jump_over_what_was_dropped() -> None:
    b = buffer()
    fill(b, event(10), event(20))
    with b.reading(TRIM_HORIZON, after(20)) as cursor:
        b.drop_before(after(10), {})
        with pytest.raises(FetcherError, match="does not cover TRIM_HORIZON"):
            cursor.read(NO_LIMIT)


# Shows 11.
def test_closed_buffer_covers_nothing_and_releases_its_bytes() -> None:
    budget = Budget(1 << 20)
    b = buffer(budget=budget)
    fill(b, event(10))
    b.close()
    b.close()
    assert not b.covers(TRIM_HORIZON)
    assert not b.covers(SHARD_END)
    assert budget.used == 0
    fill(b, event(20))
    assert budget.used == 0


# Shows 6, 7.
async def test_subscription_waits_for_a_commit_with_a_full_budget() -> None:
    b = buffer(limit=3 * SIZE)
    await b.admit(event(10), 0)
    await b.admit(event(20), 0)
    waiting = asyncio.ensure_future(b.admit(event(30), 0))
    await settle()
    assert not waiting.done()
    b.drop_before(after(10), {})
    await waiting
    assert b.covers(after(10)) and b.end == after(30)


# Shows 42.
async def test_events_larger_than_the_budget_are_admitted_singly() -> None:
    budget = Budget(3 * SIZE)
    one, other = buffer(budget=budget), buffer(budget=budget, number=1)
    await one.admit(event(10, size=100_000), 0)
    giant = asyncio.ensure_future(other.admit(event(20, size=100_000), 0))
    await settle()
    assert not giant.done()
    assert one.portion(TRIM_HORIZON, 1, 1, some=True).through == after(10)
    one.drop_before(after(10), {})
    await giant
    assert budget.used < 101_000


async def test_event_admitted_for_a_reader_goes_after_its_reading() -> None:
    """Else it would stand in the way of the next reader, until a commit that may wait for that reader."""

    budget = Budget(3 * SIZE)
    full, read = buffer(budget=budget), buffer(budget=budget, number=1)
    await full.admit(event(10), 0)
    await full.admit(event(20), 0)
    with read.reading(TRIM_HORIZON, after(30)) as cursor:
        await read.admit(event(30), 0)
        assert budget.used == 3 * SIZE
        assert len(cursor.read(NO_LIMIT)) == 1
    assert budget.used == 2 * SIZE
    assert full.covers(TRIM_HORIZON)


# Shows 18.
async def test_a_range_larger_than_the_budget_is_streamed_through() -> None:
    budget = Budget(3 * SIZE)
    b = buffer(budget=budget)

    async def subscription() -> None:
        for end in range(10, 1010, 10):
            await b.admit(event(end), 0)

    filling = asyncio.ensure_future(subscription())
    with b.reading(TRIM_HORIZON, after(1000)) as cursor:
        taken = 0
        while not cursor.done:
            taken += len(cursor.read(NO_LIMIT))
            assert budget.used <= 3 * SIZE
            await asyncio.sleep(0)
    await filling
    assert taken == 100


def still(b: ShardBuffer, *seconds: float) -> None:
    """Answers of GetRecords without records at some times."""
    for second in seconds:
        run(b.admit(Event(b"", EventHead(0, 0, 0, still=True)), second))


async def test_event_beyond_the_budget_stays_until_it_is_planned() -> None:
    budget = Budget(1000)
    b = ShardBuffer(KEY, after(10), budget, lambda: None)
    assert budget.open_account(ShardKey("orders", "other")).try_reserve(700)
    waiting = asyncio.ensure_future(b.admit(event(20), 0))
    await asyncio.sleep(0)
    assert not waiting.done()
    b.exceed()
    await waiting
    assert b.records == 1 and b.covers(after(10))


async def test_shard_with_an_event_without_room_is_not_quiet() -> None:
    """The subscription closes without room, and both its last and its next first event may be wrong."""

    budget = Budget(1000)
    b = ShardBuffer(KEY, after(10), budget, lambda: None)
    nothing = Event(b"", EventHead(10, 0, 0))
    with b.reading(after(10), after(50), asked_at=0.0) as cursor:
        await b.admit(nothing, 1.0)
        budget.open_account(ShardKey("orders", "other")).try_reserve(900)
        waiting = asyncio.ensure_future(b.room.reserve(800))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await b.admit(nothing, 225.0)
        assert not cursor.done
