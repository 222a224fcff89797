"""What a fetcher of another process may read, and until when, by its own clock."""

from __future__ import annotations

import asyncio
from math import inf

from kinesis_efo.cluster.remote_fetcher import Assignment
from kinesis_efo.decisions.losses import Known
from kinesis_efo.errors import FetcherUnreachableError
from kinesis_efo.fetcher.work import Shard, Work
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from tests.support.virtual_time import LoopClock, run

FIRST, SECOND, OTHER = (
    ShardKey("orders", "shardId-000000000000"),
    ShardKey("orders", "shardId-000000000001"),
    ShardKey("clicks", "shardId-000000000000"),
)


class Clock(LoopClock):
    """Tells what a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def work(*shards: Shard, revision: int = 2, orders: float = 10.0, clicks: float = 10.0) -> Work:
    return Work("working", revision, list(shards), {"orders": orders, "clicks": clicks})


def shard(key: ShardKey, start: str = "TRIM_HORIZON", read_until: float | None = None) -> Shard:
    return Shard(key, Position.parse(start), Known(read_until))


def assignment(clock: Clock | None = None) -> Assignment:
    return Assignment(clock or Clock(), lambda: None)


def test_nothing_may_be_read_before_the_planner_has_said_so() -> None:
    made = assignment()
    assert not made.may_read(FIRST)
    assert (made.revision, made.next_expiry, made.expired(), made.forget()) == (0, inf, frozenset(), frozenset())


def test_an_answer_tells_what_begins_and_what_ends() -> None:
    made = assignment()
    assert made.follow(work(shard(FIRST, "AFTER:5"), shard(SECOND)), 100.0) == (
        {FIRST: Position.after(5), SECOND: TRIM_HORIZON},
        frozenset(),
    )
    assert made.revision == 2
    assert made.follow(work(shard(SECOND, "AFTER:9"), shard(OTHER), revision=3), 100.0) == (
        {OTHER: TRIM_HORIZON},
        frozenset({FIRST}),
    )
    assert made.revision == 3
    assert [made.may_read(key) for key in (FIRST, SECOND, OTHER)] == [False, True, True]


def test_an_answer_without_shards_changes_only_the_time() -> None:
    clock = Clock()
    made = assignment(clock)
    made.follow(work(shard(FIRST)), 100.0)
    assert made.follow(Work("working", 7, None, {"orders": 10.0}), 108.0) == ({}, frozenset())
    assert made.revision == 2
    clock.now = 117.9
    assert made.may_read(FIRST)


def test_a_shard_may_be_read_until_the_lease_of_its_stream_ends_counted_from_the_question() -> None:
    clock = Clock()
    made = assignment(clock)
    made.follow(work(shard(FIRST), shard(OTHER), orders=10.0, clicks=4.0), 98.0)
    assert made.next_expiry == 102.0
    clock.now = 101.999
    assert made.may_read(FIRST)
    assert made.may_read(OTHER)
    assert made.expired() == frozenset()
    clock.now = 102.0
    assert made.may_read(FIRST)
    assert not made.may_read(OTHER)
    assert made.expired() == frozenset({OTHER})
    clock.now = 108.0
    assert made.expired() == frozenset({FIRST, OTHER})


def test_who_begins_anew_reads_nothing_and_asks_as_a_new_one() -> None:
    made = assignment()
    made.follow(work(shard(FIRST), shard(OTHER)), 100.0)
    assert made.forget() == frozenset({FIRST, OTHER})
    assert (made.revision, made.next_expiry, made.expired()) == (0, inf, frozenset())
    assert not made.may_read(FIRST)
    assert made.follow(work(shard(FIRST)), 100.0)[0] == {FIRST: TRIM_HORIZON}, "it begins again"


def test_the_time_up_to_which_was_read_is_that_of_the_start_alone() -> None:
    made = assignment()
    made.follow(work(shard(FIRST, "AFTER:5", 1_700_000_000.0)), 100.0)
    assert made.known(FIRST, Position.after(5)) == Known(1_700_000_000.0)
    assert made.known(FIRST, Position.after(6)) == Known()
    assert made.known(SECOND, Position.after(5)) == Known()


def test_a_refusal_says_who_is_to_blame() -> None:
    made = assignment()
    made.follow(work(shard(FIRST)), 100.0)
    refused = made.refusal(FIRST, 3.4)
    assert isinstance(refused, FetcherUnreachableError)
    assert str(refused).endswith("is not read here for 3 s now: nothing was heard of the run lately")
    assert str(made.refusal(SECOND, 3.4)).endswith("another fetcher reads it")


def test_a_subscription_is_opened_once_a_question_of_now_is_answered() -> None:
    async def main() -> None:
        asked: list[float] = []
        clock = LoopClock()
        made = Assignment(clock, lambda: asked.append(clock.monotonic()))
        began = clock.monotonic()
        made.follow(work(shard(FIRST)), began - 1)
        opening = asyncio.create_task(made.may_open(FIRST))
        await asyncio.sleep(1)
        assert not opening.done(), "who asked before may have been cut off since"
        assert asked == [began], "it makes the planner be asked at once"
        made.heard(began - 0.5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not opening.done()
        assert asked == [began, began + 1]
        made.heard(began)
        async with asyncio.timeout(0.1):
            await opening
        made.heard(began - 5)
        async with asyncio.timeout(0.1):
            made.heard(clock.monotonic())
            await made.may_open(FIRST)

    run(main())


def test_an_answer_to_an_older_question_takes_nothing_back() -> None:
    async def main() -> None:
        clock = LoopClock()
        made = Assignment(clock, lambda: None)
        made.follow(work(shard(FIRST)), clock.monotonic())
        made.heard(clock.monotonic() - 5)  # it was under way for longer
        async with asyncio.timeout(0.1):
            await made.may_open(FIRST)

    run(main())


def test_no_subscription_is_opened_for_a_shard_that_was_taken_away_meanwhile() -> None:
    async def main() -> None:
        clock = LoopClock()
        made = Assignment(clock, lambda: None)
        made.follow(work(shard(FIRST), shard(SECOND)), clock.monotonic())
        opening = asyncio.create_task(made.may_open(FIRST))
        made.follow(work(shard(SECOND), revision=3), clock.monotonic())
        await asyncio.sleep(5)
        assert not opening.done()
        made.follow(work(shard(FIRST), revision=4), clock.monotonic())
        async with asyncio.timeout(0.1):
            await opening

    run(main())


def test_who_is_cancelled_while_it_waits_leaves_nothing_that_waits() -> None:
    async def main() -> None:
        made = Assignment(LoopClock(), lambda: None)
        opening = asyncio.create_task(made.may_open(FIRST))
        await asyncio.sleep(1)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())
