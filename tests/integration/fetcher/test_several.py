"""Several queries on the fetcher of one process and a real server: what a query alone asks for, and what one asks for that reads apart."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from kinesis_efo.fetcher.buffer import STARVING_SECONDS
from kinesis_efo_local import NoFaults, Request
from tests.support.fetching import beside, reading
from tests.support.world import World

MakeFaulty = Callable[..., World]
FILLING = [(f"k{n}", b"x" * 50_000) for n in range(40)]
"""Twice as much as the smallest buffer holds."""


class Asked(NoFaults):
    """Counts what Kinesis was asked, by operation."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    async def before(self, request: Request) -> None:
        self.counts[request.operation] += 1


def test_later_query_polls_until_it_shares_the_subscription(faulty: MakeFaulty) -> None:
    asked = Asked()
    w = faulty(asked, {"orders": 2})
    w.put([(f"k{n}", b"%08d" % n) for n in range(100)])
    with reading(w, leaseTimeout="60s") as r:
        begin = r.offset
        r.until(100)
        r.commit()
        alone = asked.counts.copy()
        with beside(r, "second", begin) as second:
            second.until(100)
            second.commit()
            w.put([(f"k{n}", b"%08d" % n) for n in range(100, 200)])
            r.until(200)
            second.until(200)
            assert sorted(second.rows) == sorted(r.rows)
    assert (alone["GetRecords"], alone["GetShardIterator"]) == (0, 0)
    assert asked.counts["GetRecords"] >= 2
    assert len({row.data for row in r.rows}) == len(r.rows) == 200


def test_five_queries_ask_kinesis_for_as_much_as_one(faulty: MakeFaulty) -> None:
    def asked_for(queries: int) -> list[tuple[int, int]]:
        """Subscriptions and calls of GetRecords: for two shards, and after one of them was split."""
        asked, found = Asked(), []
        w = faulty(asked, {"orders": 2})
        with ExitStack() as stack:
            first = stack.enter_context(reading(w, leaseTimeout="60s"))
            every = [first] + [stack.enter_context(beside(first, f"q{n}", first.offset)) for n in range(1, queries)]
            for rows in (50, 100):
                if found:
                    shard = w.shards()[0]["ShardId"]
                    w.kinesis.split_shard(
                        StreamName=w.streams["orders"], ShardToSplit=shard, NewStartingHashKey=str(1 << 126)
                    )
                    w.wait_active()
                for each in every:
                    each.poll(timeout=0.0)
                w.put([(f"k{n}", b"%08d" % n) for n in range(rows - 50, rows)])
                # In turns: who comes to a new shard when another one has processed what is there reads that apart.
                while any(len(each.rows) < rows for each in every):
                    for each in every:
                        each.batch(commit=False)
                for each in every:
                    each.commit()
                    assert len(each.rows) == len({row.data for row in each.rows}) == rows
                found.append((asked.counts["SubscribeToShard"], asked.counts["GetRecords"]))
        return found

    assert asked_for(5) == asked_for(1) == [(2, 0), (4, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "goes_apart"), [("apart", True), ("hold", False)])
def test_slow_query_polls_separately_or_delays_the_others(faulty: MakeFaulty, slow: str, goes_apart: bool) -> None:
    asked = Asked()
    w = faulty(asked)
    with reading(w, leaseTimeout="60s", bufferBytes="1m", slowQueries=slow) as r, beside(r, "slow", r.offset) as second:
        for each in (r, second):
            each.poll()  # both share the buffer from its beginning on
        w.put(FILLING)
        got_last = time.monotonic()
        while len(r.rows) < len(FILLING) and time.monotonic() - got_last < STARVING_SECONDS + 2:
            if r.batch():
                got_last = time.monotonic()
        assert (len(r.rows) == len(FILLING)) is goes_apart
        deadline = time.monotonic() + 60
        while min(len(r.rows), len(second.rows)) < len(FILLING):
            assert time.monotonic() < deadline
            second.batch()
            r.batch()
        assert [row.data for row in sorted(second.rows)] == [row.data for row in sorted(r.rows)]
    assert (asked.counts["GetRecords"] > 0) is goes_apart
