"""The byte budget: what fits, who waits for whom, and what never waits."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.fetcher.budget import SHARE_BYTES, Account, Budget, Signal
from tests.support.fetched import key, settle
from tests.support.virtual_time import LoopClock, run


def joined(budget: Budget, count: int) -> list[Account]:
    return [budget.join(key(number)) for number in range(count)]


def test_three_quarters_are_for_everybody_and_the_rest_in_equal_shares() -> None:
    budget = Budget(limit=1000)
    busy, quiet = joined(budget, 2)
    assert budget.share == 125
    assert not busy.take(751)
    assert busy.take(750)
    assert not busy.take(1)
    assert not quiet.take(126)
    assert quiet.take(125)
    assert budget.used == 875


def test_shares_are_small_where_shards_are_few() -> None:
    budget = Budget(limit=256 << 20)
    (only,) = joined(budget, 1)
    assert budget.share == SHARE_BYTES
    assert only.take((256 << 20) - SHARE_BYTES)


def test_who_waits_gets_room_in_turn_and_nobody_overtakes() -> None:
    async def main() -> None:
        budget = Budget(limit=1000)
        a, b, c = joined(budget, 3)
        assert a.take(700)
        large, little = asyncio.ensure_future(b.wait(600)), asyncio.ensure_future(c.wait(90))
        await settle()
        assert not large.done() and not little.done()
        assert not a.take(40), "the others have waited longer"
        a.give_back(700)
        await asyncio.gather(large, little)
        assert (b.held, c.held, budget.used) == (600, 90, 690)

    run(main())


def test_what_is_small_overtakes() -> None:
    async def main() -> None:
        budget = Budget(limit=1000)
        busy, large, quiet = joined(budget, 3)
        assert busy.take(751 - 1)
        waiting = asyncio.ensure_future(large.wait(400))
        await settle()
        assert quiet.take(budget.share)
        assert not waiting.done()
        # Its own commit makes a shard small again.
        assert not quiet.take(50)
        again = asyncio.ensure_future(quiet.wait(50))
        await settle()
        assert not again.done()
        quiet.give_back(budget.share)
        await again
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    run(main())


def test_what_would_never_fit_comes_one_at_a_time() -> None:
    async def main() -> None:
        budget = Budget(limit=1000)
        one, other = joined(budget, 2)
        await one.wait(5000)
        second = asyncio.ensure_future(other.wait(3000))
        await settle()
        assert not second.done()
        assert budget.used == 5000
        one.give_back(5000)
        await second
        assert budget.used == 3000

    run(main())


def test_a_task_that_waits_gets_its_event_however_full_it_is() -> None:
    async def main() -> None:
        budget = Budget(limit=1000)
        busy, read = joined(budget, 2)
        assert busy.take(750)
        waiting = asyncio.ensure_future(read.wait(700))
        await settle()
        assert read.waits and not waiting.done()
        read.exceed()
        await waiting
        assert budget.used == 1450
        read.exceed()
        assert budget.used == 1450, "it waits for nothing any more"

    run(main())


def test_leaving_frees_everything_and_ends_the_waiting() -> None:
    async def main() -> None:
        budget = Budget(limit=1000)
        gone, stays = joined(budget, 2)
        assert gone.take(700)
        waiting, next_one = asyncio.ensure_future(gone.wait(600)), asyncio.ensure_future(stays.wait(650))
        await settle()
        gone.leave()
        await next_one
        assert budget.used == stays.held == 650
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        gone.give_back(10)
        gone.leave()
        assert not gone.take(1)
        assert budget.used == 650

    run(main())


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
        budget = Budget(limit=1000, now=clock.monotonic)
        one, other = joined(budget, 2)
        assert other.take(700)
        waiting = asyncio.ensure_future(one.wait(600))
        await asyncio.sleep(3)
        assert (budget.waited(key(0)), budget.waited(key(1))) == (3, 0)
        other.give_back(700)
        await waiting
        await asyncio.sleep(10)
        again = asyncio.ensure_future(one.wait(600))
        await asyncio.sleep(4)
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        await asyncio.sleep(10)
        one.leave()
        assert budget.waited(key(0)) == 7

    run(main())


@given(limit=st.integers(8, 2000), shards=st.integers(1, 8), seed=st.integers(0, 1 << 30))
def test_the_sum_stays_within_the_limit_but_for_one_event_and_nobody_waits_for_ever(
    limit: int, shards: int, seed: int
) -> None:
    """Each shard takes events of random sizes, holds them for a while and gives them back, in random order."""
    random = Random(seed)
    done = []

    async def fetch(budget: Budget, account: Account) -> None:
        for _ in range(12):
            size = random.choice([1, limit // 10, limit // 2, limit, 3 * limit])
            if not account.take(size):
                if random.random() < 0.1:
                    waiting = asyncio.ensure_future(account.wait(size))
                    await asyncio.sleep(random.random())
                    waiting.cancel()
                    if (await asyncio.gather(waiting, return_exceptions=True)) != [None]:
                        continue
                else:
                    await account.wait(size)
            assert account.held == size
            assert budget.used == sum(each.held for each in accounts)
            assert budget.used <= limit + max(each.held for each in accounts)
            assert sum(each.held > limit for each in accounts) <= 1
            await asyncio.sleep(random.random())
            account.give_back(size)
        account.leave()
        done.append(account)

    async def main() -> None:
        budget = Budget(limit)
        accounts.extend(joined(budget, shards))
        await asyncio.gather(*(fetch(budget, account) for account in accounts))
        assert budget.used == 0

    accounts: list[Account] = []
    run(main())
    assert len(done) == shards
