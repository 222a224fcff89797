"""What tools are told of several queries on one run, in virtual time; and the warning if one that reads apart falls further behind."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.status import QueryShard, QueryStatus
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.run.gap import GapWatch
from kinesis_efo.run.run import Run
from kinesis_efo.sharing.standing import Reads, slowest, stands, summed_up
from tests.support.model_stream import ModelShard, ModelStream
from tests.support.planned import finish
from tests.unit.sharing.test_several_queries import Program, horizon, key, scenario, together

FIRST, SECOND, CHILD = (ShardKey("orders", name) for name in ("a", "b", "c"))


def told(run: Run, number: int) -> QueryStatus:
    return next(each for each in run.query_statuses(shards=True) if each.number == number)


@scenario
async def test_a_query_that_shares_holds_what_it_has_not_processed() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[300] * 40)
    async with Program(stream) as program:
        slow, fast = program.join(horizon(stream)), program.join(horizon(stream))
        slow.max_records = 10
        await slow.poll()
        finish(slow.query, slow.offset)
        assert told(program.run, 1).records_done == 0, "what is planned is not done"
        await fast.until(lambda: fast.has_all)
        await slow.batch()
        finish(slow.query, slow.offset)
        await asyncio.sleep(3)
        behind, at_tip = told(program.run, 1), told(program.run, 2)
        assert (at_tip.records, at_tip.bytes, at_tip.held, at_tip.millis, at_tip.records_done) == (0, 0, 0, 0, 40)
        assert 40 * 300 < at_tip.bytes_done < 40 * 1000
        assert (behind.records, behind.records_done, behind.apart) == (30, 10, 0)
        assert behind.held == behind.bytes == program.budget.used > 30 * 300
        assert 3_000 <= (behind.millis or 0) < 60_000
        assert (behind.stream, behind.shard) == key(0)
        assert behind.shards is not None
        assert behind.shards[0].done == str(slow.offset[key(0)])
        assert program.run.query_statuses()[0].shards is None, "only if asked for"
        # The shared buffer is kept for it, and what a tool is told of the shard is where it is.
        (shard,) = await program.run.status()
        assert (shard.done, shard.query) == (str(slow.offset[key(0)]), 1)
        assert program.run.lag("orders").millis_behind == behind.millis


@scenario
async def test_it_is_the_same_if_fetchers_are_elsewhere() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, *[300] * 40)
    async with Program(stream, fetchers=2) as program:
        slow, fast = program.join(horizon(stream)), program.join(horizon(stream))
        slow.max_records = 10
        await slow.poll()
        await fast.until(lambda: fast.has_all)
        await slow.batch()
        await asyncio.sleep(3)
        behind, at_tip = told(program.run, 1), told(program.run, 2)
        assert (at_tip.records, at_tip.held, at_tip.records_done) == (0, 0, 40)
        assert (behind.records, behind.records_done, behind.apart) == (30, 10, 0)
        assert behind.held == behind.bytes > 30 * 300
        assert 3_000 <= (behind.millis or 0) < 60_000
        late = program.join(horizon(stream))
        await late.batch()
        assert (told(program.run, 3).apart, told(program.run, 3).calls) == (1, len(program.polled.limits_asked))
        shard = next(each for each in await program.run.status() if each.key == key(0))
        assert shard.query in (1, 3)


@pytest.mark.slow
@scenario
async def test_a_query_that_reads_apart_is_told_with_what_it_costs() -> None:
    stream = ModelStream(shards=2)
    stream.put(0, *[1000] * 3000)
    stream.put(1, 30)
    async with Program(stream, buffer_bytes=256 << 10) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        for _ in range(3):
            await second.batch()
        apart = told(program.run, 2)
        assert apart.apart >= 1
        assert program.run.count_queries() == (2, 1)
        assert apart.calls == len(program.polled.limits_asked) > 0
        assert apart.arrived > 0
        assert apart.shards is not None
        assert [each.apart for each in apart.shards if each.shard == key(0).shard] == [True]
        assert (apart.millis or 0) >= 1000
        # The status of a shard is that of the slowest query, as the row.
        assert max(each.millis or 0 for each in await program.run.status()) == apart.millis
        lag = program.run.lag("orders")
        assert (lag.millis_behind, lag.shard) == (apart.millis, key(0).shard)
        assert program.run.lag("clicks").millis_behind is None
        await together(first, second)
        for _ in range(3):
            await second.batch()
        assert told(program.run, 2).apart == 0
        assert program.run.count_queries() == (2, 0)
        assert told(program.run, 2).records_done == 3001


@pytest.mark.slow
@scenario
async def test_the_last_query_is_told_while_it_reads_apart() -> None:
    stream = ModelStream(shards=1)
    stream.put(0, *[1000] * 3000)
    async with Program(stream, buffer_bytes=256 << 10) as program:
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        await second.batch()
        await first.leave()
        assert [(each.number, each.apart) for each in program.run.query_statuses()] == [(2, 1)]
        assert [each.query for each in await program.run.status()] == [None]
        await second.until(lambda: second.has_all)


def test_what_a_query_holds_is_what_is_kept_for_it_and_its_lag_is_that_of_what_it_reads() -> None:
    shared, own = EventIndex(Position.after(10)), EventIndex(Position.after(0))
    for index, ends in ((shared, (20, 30, 40)), (own, (5, 9))):
        for end in ends:
            index.append(end, 100, 2, now=float(end))

    class Behind:
        def millis_behind(self, key: ShardKey) -> int | None:
            return 7_000

    def stand(done: int, claim: int | None, *, apart: bool) -> tuple[int, int, int | None, int]:
        kept = None if claim is None else Position.after(claim)
        reads = Reads(Behind(), own if apart else shared, shared, kept, apart=apart)
        found = stands(FIRST, Position.after(done), reads, now=50.0)
        assert (found.done, found.apart) == (f"AFTER:{done}", apart)
        return found.records, found.bytes, found.millis, found.held

    assert stand(20, 20, apart=False) == (4, 200, 20_000, 200)
    assert stand(5, None, apart=True) == (2, 100, 41_000, 0)
    assert stand(5, 30, apart=True) == (2, 100, 41_000, 100)
    assert stand(40, 40, apart=False) == (0, 0, 7_000, 0)
    nothing = stands(FIRST, Position.after(5), Reads(Behind(), None, None, None, apart=False), now=50.0)
    assert nothing == QueryShard(*FIRST, "AFTER:5", 0, 0, None)
    ended = stands(FIRST, SHARD_END, Reads(Behind(), shared, shared, SHARD_END, apart=False), now=50.0)
    assert ended == QueryShard(*FIRST, "SHARD_END", 0, 0, 0)


def test_the_slowest_counts_in_each_shard_and_a_child_is_not_begun_while_a_query_reads_its_parent() -> None:
    queries = {
        1: {FIRST: SHARD_END, CHILD: Position.after(50), SECOND: Position.after(5)},
        2: {FIRST: Position.after(7), SECOND: Position.after(9)},
        3: {SECOND: Position.after(9)},
    }
    assert slowest(queries, lambda shard: [FIRST] if shard == CHILD else []) == {
        FIRST: (2, Position.after(7)),
        SECOND: (1, Position.after(5)),
        CHILD: (2, TRIM_HORIZON),
    }


def test_a_query_is_as_far_behind_as_in_its_worst_shard() -> None:
    lags = {"a": None, "b": 5, "c": 9, "d": 0}
    shards = [QueryShard("orders", name, "AFTER:7", 0, 0, millis) for name, millis in lags.items()]
    found = summed_up(QueryStatus(1, ["orders"]), shards, each=False)
    assert (found.millis, found.shard) == (9, "c")
    assert summed_up(QueryStatus(1, ["orders"]), shards[:1], each=False).millis is None


# -- the gap


class Watched:
    """A query that is looked at each second, and how far it is behind."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 0.0
        self.gap: float | None = 0.0
        self._watch = GapWatch()
        self._caplog = caplog
        self.asked = 0

    def status(self) -> QueryStatus:
        self.asked += 1
        if self.gap is None:
            return QueryStatus(2, ["orders"], shards=[QueryShard("orders", "b", "AFTER:7", 0, 0, 9_000_000)])
        shards = [
            QueryShard("orders", "a", "AFTER:7", 0, 0, round(1000 * self.gap), apart=True),
            QueryShard("orders", "b", "AFTER:7", 0, 0, 9_000_000),
        ]
        return QueryStatus(2, ["orders"], "7c1f09ab", apart=1, shards=shards)

    def passes(self, minutes: int, each: float, *, apart: bool = True) -> list[str]:
        """Let minutes pass in which the gap changes by so many seconds each; returns what is said meanwhile."""
        self._caplog.clear()
        for second in range(60 * minutes):
            self.now += 1
            if self.gap is not None and second % 60 == 0:
                self.gap += each
            self._watch.look(self.now, self.status if apart else None)
        return [record.getMessage() for record in self._caplog.records]


def test_a_gap_that_grows_for_ten_minutes_is_told_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    query = Watched(caplog)
    assert query.passes(10, 12) == []
    (said,) = query.passes(2, 12)
    assert said.startswith("query 2 (checkpoint 7c1f09ab) of this program catches up in 1 shards, and falls behind")
    assert "132 s behind now, 12 s ten minutes ago" in said
    assert "'apartRate'" in said
    assert "'slowQueries=hold'" in said
    assert query.passes(50, 12) == [], "not again for an hour"
    assert len(query.passes(30, 12)) == 1
    assert query.asked <= 92 + 1


def test_a_gap_that_shrinks_or_stays_or_is_over_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    query = Watched(caplog)
    query.gap = 90_000.0
    assert query.passes(60, -20) == []
    assert query.passes(60, 0) == []
    assert query.passes(60, 0.8) == [], "it may only look so"
    assert query.passes(4, 20) == []
    assert query.passes(4, -20) == [], "a burst"
    assert query.passes(1, 0, apart=False) == []
    assert query.passes(9, 20) == [], "it began anew"
    gap, query.gap = query.gap, None
    assert query.passes(5, 0) == []
    query.gap = gap
    assert query.passes(9, 20) == [], "and again: it shared the shard meanwhile"


@pytest.mark.slow
@scenario
async def test_a_query_that_is_written_for_faster_than_it_may_read_apart_is_told() -> None:
    stream = ModelStream(shards=1, event_records=(8,))
    async with Program(stream, rate=4 << 10) as program:
        program.polled.behind = lambda shard, at: behind(program, shard, at)
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("kinesis_efo.run.gap").addHandler(handler)
        put(program, 1_500, ago=60)
        first = program.join(horizon(stream))
        await first.until(lambda: first.has_all)
        second = program.join(horizon(stream))
        began = program.clock.monotonic()
        while not messages and program.clock.monotonic() - began < 1200:
            put(program, 6)
            await first.batch()
            await second.batch()
            await asyncio.sleep(1)
        logging.getLogger("kinesis_efo.run.gap").removeHandler(handler)
        (said,) = messages
        assert said.startswith("query 2 of this program catches up in 1 shards, and falls behind")
        assert 600 <= program.clock.monotonic() - began < 800


def put(program: Program, records: int, ago: float = 0.0) -> None:
    """Records of 1 kB that say when they arrived, in seconds before now."""
    program.stream.put(0, *[1_000] * records, arrived=program.clock.time() - ago)


def behind(program: Program, shard: ModelShard, at: int) -> int:
    unread = next(number for number, _ in shard.records if number > at)
    return round(1000 * (program.clock.time() - program.stream.arrivals[unread]))
