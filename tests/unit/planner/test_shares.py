"""Sharing shards out: everything is given to somebody, evenly, and little moves."""

from __future__ import annotations

import time
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.planner.shares import EVEN, UNEVEN, share_out
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
def test_every_shard_is_given_to_a_fetcher_that_is_there(sizes: list[float], names: set[str], random: Random) -> None:
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


def test_a_little_unevenness_moves_nothing() -> None:
    weights = dict.fromkeys(map(shard, range(21)), 1.0)
    before = {shard(number): "a" if number < 11 else "b" for number in range(21)}
    assert share_out(weights, ["a", "b"], before) == before


def test_a_new_fetcher_gets_its_part_and_the_others_keep_theirs() -> None:
    weights = dict.fromkeys(map(shard, range(90)), 1.0)
    before = share_out(weights, ["a", "b"], {})
    after = share_out(weights, ["a", "b", "c"], before)
    found = loads(weights, after, ["a", "b", "c"])
    assert max(found.values()) <= 30 * EVEN
    assert found["c"] >= 20
    assert all(who in (before[key], "c") for key, who in after.items())


def test_what_a_dead_fetcher_read_is_spread_over_the_others() -> None:
    weights = dict.fromkeys(map(shard, range(90)), 1.0)
    before = share_out(weights, ["a", "b", "c"], {})
    after = share_out(weights, ["a", "b"], before)
    assert loads(weights, after, ["a", "b"]) == {"a": 45, "b": 45}
    assert all(after[key] == who for key, who in before.items() if who != "c")


def test_a_shard_that_brings_more_than_all_others_has_a_fetcher_for_itself() -> None:
    weights = {shard(0): 1000.0} | dict.fromkeys(map(shard, range(1, 5)), 1.0)
    shares = share_out(weights, ["a", "b"], dict.fromkeys(weights, "a"))
    alone = [who for who in "ab" if [shares[key] for key in weights].count(who) == 1]
    assert alone == [shares[shard(0)]]


def test_thousands_of_shards_are_shared_out_while_a_lease_lasts() -> None:
    weights = {shard(number): 1.0 + number % 7 for number in range(8000)}
    shares: dict[ShardKey, str] = {}
    began = time.process_time()
    for fetchers in range(1, 33):
        shares = share_out(weights, [f"fetcher{number}" for number in range(fetchers)], shares)
    # Half a second, where looking at each shard for each move takes minutes.
    assert time.process_time() - began < 10
