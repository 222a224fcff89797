"""The byte budget: what fits, who waits for whom, and what never waits."""

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.fetcher.budget import Account, Budget
from tests.support.fetched import key
from tests.support.virtual_time import run


def joined(budget: Budget, count: int) -> list[Account]:
    return [budget.open_account(key(number)) for number in range(count)]


def test_three_quarters_are_shared_and_the_rest_is_split() -> None:
    budget = Budget(limit=1000)
    busy, quiet = joined(budget, 2)
    assert budget.share == 125
    assert not busy.try_reserve(751)
    assert busy.try_reserve(750)
    assert not busy.try_reserve(1)
    assert not quiet.try_reserve(126)
    assert quiet.try_reserve(125)
    assert budget.used == 875


# Once a stall: a shard that held almost nothing waited for as long as a slow query's events filled the rest of the budget.
def test_small_request_passes_a_queue_that_does_not_fit() -> None:
    async def main() -> None:
        budget = Budget(limit=1000)
        slow, large, busy, quiet = joined(budget, 4)
        assert slow.try_reserve(700)
        await large.reserve(1500)
        waiting = [asyncio.ensure_future(busy.reserve(300)), asyncio.ensure_future(quiet.reserve(50))]
        assert quiet.waits
        large.release(1500)
        assert (busy.waits, quiet.waits) == (True, False)
        busy.close()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(main())


@given(limit=st.integers(8, 2000), shards=st.integers(1, 8), seed=st.integers(0, 1 << 30))
def test_limit_is_exceeded_by_one_event_at_most(limit: int, shards: int, seed: int) -> None:
    """Each shard takes events of random sizes, holds them for a while and gives them back, in random order."""
    random = Random(seed)
    done = []

    async def fetch(budget: Budget, account: Account) -> None:
        for _ in range(12):
            size = wanted[account] = random.choice([1, limit // 10, limit // 2, limit, 3 * limit])
            if not account.try_reserve(size):
                if random.random() < 0.1:
                    waiting = asyncio.ensure_future(account.reserve(size))
                    await asyncio.sleep(random.random())
                    waiting.cancel()
                    if (await asyncio.gather(waiting, return_exceptions=True)) != [None]:
                        continue
                else:
                    await account.reserve(size)
            assert account.held == size
            assert budget.used == sum(each.held for each in accounts)
            assert budget.used <= limit + max(each.held for each in accounts)
            assert sum(each.held > limit for each in accounts) <= 1
            small = [each for each in accounts if each.waits and each.held + wanted[each] <= each.share]
            assert all(budget.used + wanted[each] > limit for each in small), (
                "a quiet shard waits although there is space"
            )
            await asyncio.sleep(random.random())
            account.release(size)
        account.close()
        done.append(account)

    async def main() -> None:
        budget = Budget(limit)
        accounts.extend(joined(budget, shards))
        await asyncio.gather(*(fetch(budget, account) for account in accounts))
        assert budget.used == 0

    accounts: list[Account] = []
    wanted: dict[Account, int] = {}
    run(main())
    assert len(done) == shards
