"""Sharing shards out: everything is given to somebody, evenly, and little moves."""

import time
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.cluster.shares import INTERVAL, UNEVEN, WORTH, Rates, share_out
from kinesis_efo.positions import ShardKey


def shard(number: int) -> ShardKey:
    return ShardKey("orders", f"shardId-{number:012}")


def loads(weights: dict[ShardKey, float], shares: dict[ShardKey, str], fetchers: list[str]) -> dict[str, float]:
    return {name: sum(weights[key] for key, who in shares.items() if who == name) for name in fetchers}


@given(
    st.lists(st.floats(0.01, 1e9), max_size=40),
    st.sets(st.sampled_from("abcdef"), max_size=6),
    st.randoms(use_true_random=False),
)
def test_each_shard_is_assigned_to_a_present_fetcher(sizes: list[float], names: set[str], random: Random) -> None:
    weights = {shard(number): size for number, size in enumerate(sizes)}
    before = {key: random.choice("abcdefgh") for key in weights if random.random() < 0.7}
    shares = share_out(weights, names, before)
    if not names:
        assert shares == {}
        return
    assert shares.keys() == weights.keys()
    assert set(shares.values()) <= names
    counts = [sum(who == name for who in shares.values()) for name in names]
    assert not (0 in counts and max(counts) > 1), "none is idle while another has two"
    assert share_out(weights, names, shares) == shares, "who has it keeps it: nothing moves for ever"


@given(st.lists(st.floats(0.5, 2.0), min_size=60, max_size=200), st.integers(1, 6), st.randoms(use_true_random=False))
def test_no_fetcher_has_much_more_than_the_others(sizes: list[float], fetchers: int, random: Random) -> None:
    weights = {shard(number): size for number, size in enumerate(sizes)}
    names = list("abcdef"[:fetchers])
    before = {key: random.choice(names) for key in weights}
    found = loads(weights, share_out(weights, names, before), names)
    assert max(found.values()) <= UNEVEN * sum(found.values()) / len(found)


@pytest.mark.slow
def test_thousands_of_shards_are_assigned_within_a_lease() -> None:
    weights = {shard(number): 1.0 + number % 7 for number in range(8000)}
    shares: dict[ShardKey, str] = {}
    began = time.process_time()
    for fetchers in range(1, 33):
        shares = share_out(weights, [f"fetcher{number}" for number in range(fetchers)], shares)
    # Half a second, where looking at each shard for each move takes minutes.
    assert time.process_time() - began < 10


# -- over time


def moves_an_hour(shards: int, fetchers: int, noise: float, seed: int) -> tuple[int, list[int]]:
    """How many shards change hands in the hour after the first minute, and how many each fetcher has at its end.

    Args:
        shards: All bring the same, but for the noise.
        fetchers: All are there from the beginning.
        noise: By how much what a shard brings within one measurement may differ.
        seed: Of the noise.
    """
    random, keys, names = Random(seed), list(map(shard, range(shards))), [f"fetcher{n}" for n in range(fetchers)]
    rates, now, moves, shares = Rates(0.0), 0.0, 0, share_out(dict.fromkeys(map(shard, range(shards)), 1.0), names, {})
    while now < 3600 + 60:
        now += INTERVAL
        for key in keys:
            rates.add(key, round(1e7 * random.uniform(1 - noise, 1 + noise)))
        assert rates.tick(now)
        after = share_out(rates.weights(keys), names, shares)
        moves += sum(after[key] != shares[key] for key in keys) if now > 60 else 0
        shares = after
    return moves, [list(shares.values()).count(name) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "at_most"), [(0.0, 0), (0.02, 0), (0.1, 0), (0.2, 3)])
def test_shards_do_not_move_at_even_load(noise: float, at_most: int) -> None:
    for shards, fetchers in product(range(1, 11), range(1, 7)):
        moves, counts = moves_an_hour(shards, fetchers, noise, seed=100 * shards + fetchers)
        assert moves <= at_most, f"{shards} shards on {fetchers} fetchers"
        assert max(counts) - min(counts) <= 1


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_move_makes_up_for_what_it_costs(sizes: list[float], fetchers: int, random: Random) -> None:
    names = list("abcde"[:fetchers])
    keyed = {shard(number): size for number, size in enumerate(sizes)}
    before = {key: random.choice(names) for key in keyed}
    after = share_out(keyed, names, before)
    moved = [keyed[key] for key in keyed if before[key] != after[key]]
    old, new = loads(keyed, before, names), loads(keyed, after, names)
    if all(old.values()):
        squares = [sum(load**2 for load in each.values()) for each in (old, new)]
        # Each moves once, from one that has so much more than it brings.
        assert squares[0] - squares[1] >= 2 * (WORTH - 1) * sum(weight**2 for weight in moved) - 1e-6
