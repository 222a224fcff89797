"""The buffer of one shard: what it covers, how it is cut, who makes whom wait."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref

import pytest

from kinesis_efo.decisions.event_index import Portion
from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.positions import LastRecord, Position
from kinesis_efo.records.events import Event, EventHead
from tests.support.fetched import (
    EVENT_OVERHEAD,
    SHARD_END,
    TRIM_HORIZON,
    admits_now,
    after,
    buffer,
    event,
    fill,
    idle,
    run,
    settle,
)

SIZE = EVENT_OVERHEAD + 100
NO_LIMIT = 1 << 60


def test_a_portion_takes_whole_events_within_both_limits() -> None:
    b = buffer()
    fill(b, event(10, 3), event(20, 3), event(30, 3))
    assert b.portion(TRIM_HORIZON, NO_LIMIT, NO_LIMIT) == Portion(after(30), 3 * SIZE, 9, events=3)
    assert b.portion(TRIM_HORIZON, 2 * SIZE, NO_LIMIT) == Portion(after(20), 2 * SIZE, 6, events=2)
    assert b.portion(TRIM_HORIZON, NO_LIMIT, 5) == Portion(after(10), SIZE, 3, events=1)
    assert b.portion(after(10), NO_LIMIT, 2) == Portion(after(10), 0, 0)
    assert b.portion(after(10), 1, 1, some=True) == Portion(after(20), SIZE, 3, events=1)
    assert b.portion(after(30), 1, 1, some=True) == Portion(after(30), 0, 0)


def test_a_position_inside_an_event_takes_that_event_again() -> None:
    b = buffer()
    fill(b, event(10), event(20))
    assert b.portion(after(15), NO_LIMIT, NO_LIMIT) == Portion(after(20), SIZE, 1, events=1)
    with b.reading(TRIM_HORIZON, after(15)) as cursor:
        assert len(cursor.take(NO_LIMIT)) == 2
        assert cursor.done


@pytest.mark.parametrize(
    ("through", "after_", "last"),
    [
        (25, 0, 22),  # between two records of the second event
        (22, 0, 22),
        (21, 0, 12),  # in front of its first record: what was before is the last
        (20, 0, 12),
        (13, 0, 12),
        (21, 12, None),
        (25, 22, None),
        (25, 21, 22),
        (40, 0, 28),
        (41, 0, None),  # behind what has come
    ],
)
def test_the_last_record_up_to_any_position(through: int, after_: int, last: int | None) -> None:
    b = buffer()
    fill(b, numbered_event(15, 11, 12), numbered_event(30, 22, 28), idle(40))
    assert b.last_up_to(after(through), after(after_)) == last


def numbered_event(continuation: int, *numbers: int) -> Event:
    records = [{"SequenceNumber": str(number), "Data": ""} for number in numbers]
    return Event(json.dumps({"Records": records}).encode(), EventHead(continuation, 0, len(numbers), last=numbers[-1]))


def test_last_record_of_an_event_that_was_dropped_before_a_report_is_known() -> None:
    b = buffer()
    fill(b, numbered_event(15, 11, 12), idle(20), numbered_event(30, 22, 28))
    b.commit(after(20))
    told, number = b.entries_since(0)
    assert [event.last_record for event in told] == [LastRecord(12), None, LastRecord(28)]
    assert number == 3


def test_record_is_known_at_which_a_query_has_ended() -> None:
    b = buffer()
    fill(b, numbered_event(15, 11, 12), numbered_event(30, 22, 28))
    for through, record in ((12, 12), (14, 12), (15, 12), (28, 28), (29, 28)):
        b.commit(after(through))
        assert b.last_record_up_to(after(through)) == LastRecord(record)
    assert b.last_record_up_to(after(31)) is None, "what may still come is not known"


def test_a_query_that_is_behind_the_buffer_gets_no_later_record() -> None:
    b = buffer()
    fill(b, numbered_event(15, 11, 12), numbered_event(30, 22, 28), numbered_event(45, 41))
    b.commit(after(30))
    assert b.last_record_up_to(after(15)) is None


def test_idle_events_move_the_end_and_take_no_room() -> None:
    b = buffer(limit=10)
    fill(b, *map(idle, range(1, 200)))
    assert b.portion(TRIM_HORIZON, 0, 0) == Portion(after(199), 0, 0)
    assert len(b) - b.gone == 1
    assert b.news_since(TRIM_HORIZON) is None


def test_a_position_stays_covered_when_the_idle_event_it_came_from_moves_on() -> None:
    b = buffer(Position.at_timestamp(5))
    fill(b, idle(10))
    reached = b.portion(b.start, 0, 0).through
    fill(b, idle(20))
    assert reached == after(10)
    assert b.covers(reached)
    fill(b, event(30))
    assert b.portion(reached, NO_LIMIT, NO_LIMIT) == Portion(after(30), SIZE, 1, events=1)


def test_ends_never_step_back() -> None:
    b = buffer(after(100))
    fill(b, idle(90))
    assert b.portion(after(100), 0, 0).through == after(100)
    fill(b, event(110), idle(105))
    assert b.portion(after(100), NO_LIMIT, NO_LIMIT).through == after(110)


def test_the_end_of_the_shard_is_news_without_records() -> None:
    b = buffer()
    fill(b, event(10), event(None, records=0, children=["c"]), at=7.0)
    assert b.news_since(after(10)) == 7.0
    assert b.portion(after(10), 0, 0, some=True).through == SHARD_END
    with b.reading(TRIM_HORIZON, SHARD_END) as cursor:
        assert len(cursor.take(NO_LIMIT)) == 1
        assert cursor.position == SHARD_END


def test_the_last_event_may_carry_records() -> None:
    b = buffer()
    fill(b, event(None, records=2, children=["c"]))
    assert b.portion(TRIM_HORIZON, NO_LIMIT, NO_LIMIT) == Portion(SHARD_END, SIZE, 2, events=1)
    with b.reading(TRIM_HORIZON, SHARD_END) as cursor:
        assert len(cursor.take(NO_LIMIT)) == 1


def test_a_commit_drops_what_lies_before_it_and_keeps_the_rest() -> None:
    budget = Budget(1 << 20)
    b = buffer(budget=budget)
    fill(b, event(10), event(20), event(30))
    b.commit(after(25))
    assert budget.used == SIZE
    assert b.covers(after(20))
    assert not b.covers(TRIM_HORIZON)
    assert not b.covers(after(19))
    b.commit(after(7))
    b.commit(TRIM_HORIZON)
    assert budget.used == SIZE
    with b.reading(after(20), after(30)) as cursor:
        assert len(cursor.take(NO_LIMIT)) == 1


def numbered(end: int, *records: int) -> Event:
    """An event with records of these numbers."""
    document = {"Records": [{"SequenceNumber": str(record)} for record in records]}
    return Event(json.dumps(document).encode(), EventHead(end, 0, len(records)))


def test_the_buffer_knows_the_last_record_before_its_start() -> None:
    b = buffer()
    fill(b, numbered(10, 7, 9), idle(15), numbered(20, 16), numbered(30, 27))
    assert b.last_record is None
    for position, record in ((10, 9), (15, 9), (20, 16), (30, 27)):
        b.commit(after(position))
        assert (b.start, b.last_record) == (after(position), LastRecord(record))
    fill(b, idle(40))
    b.commit(after(40))
    assert b.last_record == LastRecord(27)


def test_the_last_record_is_known_up_to_a_position_in_the_middle_of_an_event() -> None:
    b = buffer()
    fill(b, numbered(10, 7, 9), numbered(20, 14, 16, 18), idle(30))
    for position, record in ((10, 9), (13, 9), (14, 14), (17, 16), (20, 18), (25, 18)):
        b.commit(after(position))
        assert b.last_record_up_to(after(position)) == LastRecord(record)
    assert b.last_record_up_to(after(31)) is None, "what may still come is not known"
    assert b.last_record_up_to(SHARD_END) is None


def test_records_that_are_not_committed_say_nothing() -> None:
    b = buffer()
    fill(b, numbered(10, 7), numbered(20, 14))
    assert b.last_record_up_to(after(15)) is None


def test_the_buffer_knows_since_when_records_wait_for_a_commit() -> None:
    b = buffer()
    fill(b, idle(5), at=1.0)
    assert b.waiting_since is None, "nothing came"
    fill(b, event(10), at=2.0)
    fill(b, idle(15), at=3.0)
    fill(b, event(20), at=4.0)
    assert b.waiting_since == 2.0
    b.commit(after(5))
    assert b.waiting_since == 2.0
    b.commit(after(10))
    assert b.waiting_since == 4.0
    b.commit(after(20))
    assert b.waiting_since is None


def test_a_cursor_refuses_to_jump_over_what_was_dropped() -> None:
    b = buffer()
    fill(b, event(10), event(20))
    with b.reading(TRIM_HORIZON, after(20)) as cursor:
        b.commit(after(10))
        with pytest.raises(FetcherError, match="does not cover TRIM_HORIZON"):
            cursor.take(NO_LIMIT)


def test_a_closed_buffer_covers_nothing_and_gives_its_bytes_back() -> None:
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


def test_a_closed_buffer_goes_with_its_payloads_before_the_garbage_collector_comes() -> None:
    gc.disable()
    try:
        b = buffer()
        fill(b, event(10))
        left = weakref.ref(b)
        b.close()
        del b
        assert left() is None
    finally:
        gc.enable()


def test_a_full_budget_makes_the_subscription_wait_until_a_commit() -> None:
    async def main() -> None:
        b = buffer(limit=3 * SIZE)
        await b.admit(event(10), 0)
        await b.admit(event(20), 0)
        waiting = asyncio.ensure_future(b.admit(event(30), 0))
        await settle()
        assert not waiting.done()
        b.commit(after(10))
        await waiting
        assert b.covers(after(10)) and b.end == after(30)

    run(main())


def test_an_event_larger_than_the_budget_is_admitted_one_at_a_time() -> None:
    async def main() -> None:
        budget = Budget(3 * SIZE)
        one, other = buffer(budget=budget), buffer(budget=budget, number=1)
        await one.admit(event(10, size=100_000), 0)
        giant = asyncio.ensure_future(other.admit(event(20, size=100_000), 0))
        await settle()
        assert not giant.done()
        assert one.portion(TRIM_HORIZON, 1, 1, some=True).through == after(10)
        one.commit(after(10))
        await giant
        assert budget.used < 101_000

    run(main())


def test_room_is_taken_before_an_event_is_read_and_given_back_where_none_comes() -> None:
    async def main() -> None:
        budget = Budget(100_000)
        b = buffer(budget=budget)
        assert b.room.take(10_000)
        assert budget.used == 10_000 + EVENT_OVERHEAD
        await b.admit(event(10, size=10_000), 0)
        assert budget.used == 10_000 + EVENT_OVERHEAD
        assert b.room.take(50_000)
        await b.admit(event(20, size=1000), 0)
        assert budget.used == 11_000 + 2 * EVENT_OVERHEAD, "what an event does not need is given back"
        assert b.room.take(50_000)
        await b.admit(idle(30), 0)
        assert budget.used == 11_000 + 2 * EVENT_OVERHEAD
        assert b.room.take(50_000)
        b.room.release()
        assert budget.used == 11_000 + 2 * EVENT_OVERHEAD

    run(main())


def test_who_waits_for_more_room_holds_none() -> None:
    """What was reserved before may not be enough: after a pause, Kinesis cuts the events differently."""

    async def main() -> None:
        budget = Budget(100_000)
        busy, b, other = (buffer(budget=budget, number=number) for number in range(3))
        assert busy.room.take(20_000) and b.room.take(50_000)
        assert not b.room.take(70_000)
        more = asyncio.ensure_future(b.room.wait(70_000))
        await settle()
        assert not more.done()
        assert budget.used == 20_000 + EVENT_OVERHEAD
        waiting = asyncio.ensure_future(other.room.wait(50_000))
        await settle()
        assert not waiting.done(), "it came later"
        busy.room.release()
        await more
        b.room.release()
        await waiting

    run(main())


def test_what_came_for_a_reader_while_it_was_full_goes_once_it_is_read() -> None:
    """Else it would stand in the way of the next reader, until a commit that may wait for that reader."""

    async def main() -> None:
        budget = Budget(3 * SIZE)
        full, read = buffer(budget=budget), buffer(budget=budget, number=1)
        await full.admit(event(10), 0)
        await full.admit(event(20), 0)
        with read.reading(TRIM_HORIZON, after(30)) as cursor:
            await read.admit(event(30), 0)
            assert budget.used == 3 * SIZE
            assert len(cursor.take(NO_LIMIT)) == 1
        assert budget.used == 2 * SIZE
        assert full.covers(TRIM_HORIZON)

    run(main())


def test_a_range_larger_than_the_budget_is_streamed_through() -> None:
    async def main() -> None:
        b = buffer(limit=3 * SIZE)

        async def subscription() -> None:
            for end in range(10, 1010, 10):
                await b.admit(event(end), 0)

        filling = asyncio.ensure_future(subscription())
        with b.reading(TRIM_HORIZON, after(1000)) as cursor:
            taken = 0
            while not cursor.done:
                taken += len(cursor.take(NO_LIMIT))
                assert b._budget.used <= 3 * SIZE
                await asyncio.sleep(0)
        await filling
        assert taken == 100

    run(main())


def test_the_slowest_of_two_readers_holds_back_what_is_dropped() -> None:
    async def main() -> None:
        b = buffer(limit=3 * SIZE)
        await b.admit(event(10), 0)
        await b.admit(event(20), 0)
        with b.reading(TRIM_HORIZON, after(30)) as fast, b.reading(TRIM_HORIZON, after(30)) as slow:
            fast.take(NO_LIMIT)
            assert not await admits_now(b, event(30))
            slow.take(1)
            assert not await admits_now(b, event(30))
            slow.take(NO_LIMIT)
            assert await admits_now(b, event(30))
            assert fast.take(NO_LIMIT) == slow.take(NO_LIMIT)

    run(main())


def test_a_reader_that_is_done_does_not_let_its_range_be_dropped() -> None:
    """Another action on the same micro-batch would have to wait for a new subscription."""

    async def main() -> None:
        b = buffer(limit=3 * SIZE)
        await b.admit(event(10), 0)
        await b.admit(event(20), 0)
        with b.reading(TRIM_HORIZON, after(20)) as cursor:
            cursor.take(NO_LIMIT)
            assert not await admits_now(b, event(30))
        assert not await admits_now(b, event(30))
        assert b.covers(TRIM_HORIZON)

    run(main())


def test_many_commits_compact_the_columns() -> None:
    b = buffer()
    for end in range(1, 6000):
        fill_one = event(end, size=0)
        b._append(fill_one, EVENT_OVERHEAD, 0.0)
        b.commit(after(end - 3))
    assert len(b) < 3000
    assert len(b) - b.gone == 3
    with b.reading(after(5996), after(5999)) as cursor:
        assert len(cursor.take(NO_LIMIT)) == 3
    assert b.portion(after(5996), NO_LIMIT, NO_LIMIT) == Portion(after(5999), 3 * EVENT_OVERHEAD, 3, events=3)


def still(b: ShardBuffer, *seconds: float) -> None:
    """Answers of GetRecords without records at some times."""
    for second in seconds:
        run(b.admit(Event(b"", EventHead(0, 0, 0, still=True)), second))


def test_an_event_that_reaches_beyond_the_last_record_without_having_it_is_shown_and_not_taken() -> None:
    b = buffer()
    fill(b, numbered(10, 7), numbered(20, 14, 18))
    with b.reading(TRIM_HORIZON, after(20), 16) as cursor:
        assert len(cursor.take(NO_LIMIT)) == 1
        assert (cursor.beyond, cursor.done, cursor.settled) == ([numbered(20, 14, 18).payload], False, after(10))
    with b.reading(TRIM_HORIZON, after(20), 14) as cursor:
        assert len(cursor.take(NO_LIMIT)) == 2
        assert (cursor.beyond, cursor.done) == (None, True)
    fill(b, idle(30))
    with b.reading(after(20), after(30), 25) as cursor:
        assert cursor.take(NO_LIMIT) == []
        assert (cursor.beyond, cursor.done) == ([], False)


def test_a_range_without_a_known_last_record_is_over_once_nothing_more_is_believed_to_come() -> None:
    b = buffer(after(5))
    with b.reading(after(5), after(30), asked_at=0.0) as cursor, b.reading(after(5), SHARD_END) as to_the_end:
        still(b, 0.0, 1.0)
        assert not cursor.done
        still(b, 2.5)
        assert cursor.take(NO_LIMIT) == []
        assert (cursor.done, to_the_end.done) == (True, False), "only Kinesis decides that a shard has ended"
    with b.reading(after(5), after(30), asked_at=2.0) as cursor:
        assert not cursor.done, "what came before it was asked for does not count"
    with b.reading(after(5), after(30), 25) as cursor:
        assert not cursor.done, "a known record is waited for"


def test_silence_of_a_buffer_that_began_at_a_time_says_nothing_about_what_is_before_it() -> None:
    b = buffer(Position.at_timestamp(1_700_000_000_000))
    with b.reading(after(5), after(30), asked_at=0.0) as cursor:
        still(b, 0.0, 1.0)
        assert b.covers(after(5)) is None
        assert cursor.take(NO_LIMIT) == [], "its first event will show it"
        still(b, 2.5)
        assert b.covers(after(5)) is False
        assert not cursor.done
        with pytest.raises(FetcherError, match="does not cover AFTER:5"):
            cursor.take(NO_LIMIT)
    with b.reading(b.start, after(30), asked_at=0.0) as cursor:
        assert cursor.done


def test_a_buffer_that_began_at_a_time_covers_the_number_of_its_first_record() -> None:
    b = buffer(Position.at_timestamp(1_700_000_000_000))
    fill(b, numbered(20, 14, 18), numbered(30, 24))
    assert [b.covers(after(number)) for number in (13, 14, 18, 20)] == [False, True, True, True]
