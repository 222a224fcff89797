"""The byte budget: what is guaranteed, what is shared."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.fetcher.budget import Budget, Signal
from tests.support.fetched import key
from tests.support.virtual_time import LoopClock, run


def test_a_shard_may_fill_all_but_what_others_are_guaranteed() -> None:
    budget = Budget(limit=100, guarantee=10)
    for number in range(3):
        budget.join(key(number))
    assert budget.fits(key(0), 80)
    assert not budget.fits(key(0), 81)
    budget.take(key(0), 80)
    assert budget.fits(key(1), 10)
    assert not budget.fits(key(1), 11)
    budget.give_back(key(0), 80)
    assert budget.used == 0


def test_the_guarantee_shrinks_to_an_even_share() -> None:
    budget = Budget(limit=100, guarantee=60)
    budget.join(key(0))
    assert budget.guarantee == 60
    budget.join(key(1))
    assert budget.guarantee == 50
    budget.leave(key(0))
    assert budget.guarantee == 60


def test_leaving_frees_what_was_held_and_wakes() -> None:
    async def main() -> None:
        budget = Budget(limit=100)
        budget.join(key(0))
        budget.take(key(0), 70)
        woken = asyncio.ensure_future(budget.room.wait())
        await asyncio.sleep(0)
        budget.leave(key(0))
        await asyncio.wait_for(woken, 5)
        assert budget.used == 0

    asyncio.run(main())


def test_a_signal_given_before_the_await_is_not_missed() -> None:
    async def main() -> None:
        signal = Signal()
        waiting = signal.wait()
        signal.notify()
        await asyncio.wait_for(waiting, 5)

    asyncio.run(main())


def test_the_time_that_a_shard_waits_counts_while_it_waits() -> None:
    async def main() -> None:
        clock = LoopClock()
        budget = Budget(limit=100, now=clock.monotonic)
        budget.join(key(0))
        budget.take(key(0), 70)
        waiting = asyncio.ensure_future(budget.wait(key(0)))
        await asyncio.sleep(3)
        assert (budget.waited(key(0)), budget.waited(key(1))) == (3, 0)
        budget.give_back(key(0), 70)
        await waiting
        await asyncio.sleep(10)
        again = asyncio.ensure_future(budget.wait(key(0)))
        await asyncio.sleep(4)
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        await asyncio.sleep(10)
        budget.leave(key(0))
        assert budget.waited(key(0)) == 7

    run(main())


@given(
    limit=st.integers(1, 1000),
    guarantee=st.integers(1, 200),
    shards=st.integers(1, 8),
    steps=st.lists(st.tuples(st.integers(0, 7), st.integers(-300, 300)), max_size=60),
)
def test_bytes_that_fit_never_exceed_the_limit_and_never_touch_a_guarantee(
    limit: int, guarantee: int, shards: int, steps: list[tuple[int, int]]
) -> None:
    budget = Budget(limit, guarantee)
    held = dict.fromkeys(map(key, range(shards)), 0)
    for shard in held:
        budget.join(shard)
    for number, change in steps:
        shard = key(number % shards)
        if change < 0:
            freed = min(-change, held[shard])
            budget.give_back(shard, freed)
            held[shard] -= freed
        elif budget.fits(shard, change):
            budget.take(shard, change)
            held[shard] += change
        assert budget.used == sum(held.values()) <= limit
        for each, bytes_held in held.items():
            assert budget.fits(each, max(0, budget.guarantee - bytes_held)), (
                "a guarantee is not there when it is needed"
            )
