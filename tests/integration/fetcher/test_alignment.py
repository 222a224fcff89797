"""Shards with backlogs of very different sizes are read together in time, whoever fetches them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Any

import pytest

from tests.integration.fetcher.test_remote import reading as reading_with
from tests.support.backlog import arrivals, backlog
from tests.support.fetcher_processes import FetcherProcesses
from tests.support.fetching import Reading, reading
from tests.support.world import World

SIZES = (1, 60, 7, 0)
SKEW = 30.0


def read_all(r: Reading, w: World, puts: int, most: float) -> float:
    """Read everything in small micro-batches.

    Returns:
        The most seconds that a row came before one that had arrived earlier and came in a later micro-batch.
    """
    times = arrivals(w)
    assert len(times) == puts
    left = dict(times)
    apart = -inf
    deadline = time.monotonic() + 60
    while left:
        assert time.monotonic() < deadline, f"{len(left)} of {puts} rows are left"
        taken = [left.pop((row.shard, row.sequence)) for row in r.batch(max_records=100)]
        if taken and left:
            apart = max(apart, max(taken) - min(left.values()))
            assert apart <= most
    return apart


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_no_shard_exceeds_the_skew_of_the_option(world: Callable[..., World], mode: str) -> None:
    w = world({"orders": len(SIZES)})
    puts = backlog(w, SIZES)
    options = {"bufferBytes": "1m", "readMode": mode, "pollingInterval": "200ms"}
    with reading(w, **options, maxShardSkew="30s") as r:
        read_all(r, w, puts, SKEW)
    with reading(w, **options) as r:
        assert read_all(r, w, puts, inf) > 600, "without it, shards are read unevenly"


def test_a_query_that_was_stopped_reads_on_together(world: Callable[..., World]) -> None:
    w = world({"orders": len(SIZES)})
    backlog(w, SIZES)
    times = arrivals(w)
    stopped = None
    for _ in range(4):
        with reading(w, at=stopped, maxShardSkew="30s") as r:
            deadline = time.monotonic() + 30
            rows = r.batch(max_records=200)
            while not rows:
                assert time.monotonic() < deadline
                rows = r.batch(max_records=200)
            stopped = r.offset
            taken = [times.pop((row.shard, row.sequence)) for row in rows]
            assert max(taken) - min(times.values()) <= SKEW


def test_two_streams_advance_together_and_children_follow_parents(world: Callable[..., World]) -> None:
    w = world({"orders": 2, "clicks": 1})
    puts = backlog(w, (40, 2)) + backlog(w, (1,), stream="clicks")
    w.kinesis.split_shard(
        StreamName=w.streams["orders"], ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    w.wait_active()
    w.aws.backdate(w.streams["orders"], 1)
    children = [f"key{number}" for number in range(50)]
    puts += w.put((child, b"of a child") for child in children)
    with reading(w, maxShardSkew="30s") as r:
        times = {("orders", *key): at for key, at in arrivals(w).items()}
        times |= {("clicks", *key): at for key, at in arrivals(w, "clicks").items()}
        deadline = time.monotonic() + 60
        while times:
            assert time.monotonic() < deadline, f"{len(times)} of {puts} rows are left"
            taken = [times.pop((row.stream, row.shard, row.sequence)) for row in r.batch(max_records=100)]
            if taken and times:
                assert max(taken) - min(times.values()) <= SKEW


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["efo", pytest.param("polling", marks=pytest.mark.long)])
def test_shards_at_several_fetchers_are_read_together(world: Callable[..., World], mode: str) -> None:
    w = world({"orders": len(SIZES)})
    puts = backlog(w, SIZES)
    fetchers = FetcherProcesses(2)
    context: AbstractContextManager[Any] = reading_with(
        w, fetchers, readMode=mode, maxShardSkew="30s", pollingInterval="200ms"
    )
    with context as r:
        read_all(r, w, puts, SKEW)


def test_a_live_query_is_not_held_up(world: Callable[..., World]) -> None:
    w = world({"orders": 4})
    with reading(w, maxShardSkew="10s", startingPosition="LATEST") as r:
        for number in range(5):
            w.put([(f"{number}", b"now")])
            began = time.monotonic()
            r.until(number + 1, seconds=20)
            assert time.monotonic() - began < 10
