"""Whom a feed wakes for which event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.errors import DataLossError, KinesisEfoError, StreamError
from kinesis_efo.fetcher.budget import Budget, ShardRoom
from kinesis_efo.fetcher.feed import FetchCounts, ShardFeed
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.events import ChildShard, Event, EventHead

KEY = ShardKey("orders", "shardId-0")
RECORDS = Event(b'{"Records":[{}]}', EventHead(10, 0, 1))
NOTHING = Event(b"{}", EventHead(20, 0, 0))
END = Event(b"{}", EventHead(None, 0, 0, (ChildShard("shardId-1", ("shardId-0",), 0, 1),)))


class Listener:
    """Counts."""

    def __init__(self) -> None:
        self.touched = 0
        self.woken = 0

    def touch(self, shards: Iterable[ShardKey]) -> None:
        assert list(shards) == [KEY]
        self.touched += 1

    def wake(self) -> None:
        self.woken += 1


def raised(error: KinesisEfoError) -> None:
    raise error


async def unexpected(cause: str) -> None:
    raise AssertionError(cause)


class Subscription:
    """Delivers what it was made with."""

    def __init__(self, sink: Any, events: list[Event]) -> None:
        self._sink = sink
        self._events = events

    async def run(self) -> None:
        for event in self._events:
            await self._sink.admit(event)


def feed_by(
    subscribe: Any,
    listener: Listener,
    clock: Clock,
    failed: Callable[[KinesisEfoError], None] = raised,
    counts: FetchCounts | None = None,
    lost: Callable[[str], Awaitable[None]] | None = None,
) -> ShardFeed:
    return ShardFeed(
        KEY,
        subscribe,
        Budget(1 << 20),
        listener,
        lambda _children: None,
        failed,
        counts or FetchCounts(),
        clock,
        fail_on_data_loss=lost is None,
        lost=lost or unexpected,
    )


def feed_of(events: list[Event], listener: Listener) -> ShardFeed:
    return feed_by(lambda _, sink: Subscription(sink, events), listener, SystemClock())


@pytest.mark.parametrize(
    ("events", "polls", "reads"),
    [
        ([RECORDS], 1, 1),
        ([NOTHING], 0, 1),
        ([NOTHING, NOTHING], 0, 2),
        ([RECORDS, NOTHING], 1, 2),
        ([NOTHING, RECORDS], 1, 2),
        ([END], 1, 1),
        ([NOTHING, END], 1, 2),
    ],
)
def test_polls_are_woken_by_news_and_reads_by_every_event(events: list[Event], polls: int, reads: int) -> None:
    async def run() -> None:
        listener, read = Listener(), []
        feed = feed_of(events, listener)
        feed.news.notify = lambda: read.append(1)  # type: ignore[method-assign]
        feed.from_position(TRIM_HORIZON)
        assert feed._task is not None
        await feed._task
        assert (listener.woken, len(read)) == (polls, reads)
        assert listener.touched == reads

    asyncio.run(run())


BEHIND = Event(b'{"Records":[{}]}', EventHead(5, 900, 1))
STILL = Event(b"", EventHead(0, 0, 0, still=True))
STILL_BEHIND = Event(b"", EventHead(0, 900, 0, still=True))
LATE_END = Event(b"{}", EventHead(None, 900, 0, END.head.children))


class Hand(SystemClock):
    """A clock that is set by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_buffer_ends_behind_what_had_arrived_by_a_time_as_far_as_its_events_say_when_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        clock, sinks, waits = Hand(), [], []

        class Open:
            def __init__(self, sink: Any) -> None:
                sinks.append(sink)

            async def run(self) -> None: ...

        async def occupy(room: ShardRoom, size: int) -> None:
            clock.now += sum(waits)

        monkeypatch.setattr(ShardRoom, "occupy", occupy)
        feed = feed_by(lambda _, sink: Open(sink), Listener(), clock)
        assert feed.tip_since(-100.0) is None
        feed.from_position(TRIM_HORIZON)
        assert feed._task is not None
        await feed._task
        assert feed.tip_since(-100.0) is None
        for now, event, known in (
            (10.0, BEHIND, None), (12.0, STILL, None), (12.9, STILL, None), (13.0, STILL_BEHIND, 9.1),
            (14.0, STILL, 12.0), (15.0, STILL, 12.1), (16.0, STILL, 14.0),
        ):  # fmt: skip
            clock.now = now
            await sinks[0].admit(event)
            clock.now += 100
            if known is None:
                assert feed.tip_since(-100.0) is feed.unseen is None, "two answers, or three in a second, prove nothing"
            else:
                assert (feed.tip_since(known - 0.01), feed.tip_since(known + 0.01)) == (Position.after(5), None)
                assert feed.unseen == pytest.approx(clock.now - known)
        for now in (20.0, 30.0, 40.0):
            clock.now, waits[:] = now, [7.0]
            await sinks[0].admit(RECORDS)
        assert (feed.tip_since(19.99), feed.tip_since(20.01)) == (Position.after(10), None), "it waited for room"
        await sinks[0].admit(LATE_END)
        assert feed.tip_since(1000.0) == SHARD_END
        feed.close()
        assert feed.tip_since(-100.0) is None

    asyncio.run(run())


@pytest.mark.parametrize("step", [0.2, 1.0])
def test_whoever_plans_is_told_once_nothing_more_is_believed_to_be_there_however_often_is_asked(step: float) -> None:
    told: list[float] = []

    clock = Hand()

    class Quiet:
        def __init__(self, sink: Any) -> None:
            self._sink = sink

        async def run(self) -> None:
            for _ in range(40):
                await self._sink.admit(STILL)
                clock.now += step

    class Told(Listener):
        def touch(self, shards: Iterable[ShardKey]) -> None:
            told.append(feed.quiet)

    feed = feed_by(lambda _, sink: Quiet(sink), Told(), clock)

    async def run() -> None:
        feed.from_position(Position.after(5))
        assert feed._task is not None
        await feed._task

    asyncio.run(run())
    assert any(told), "the planner looks at a shard only where it is told to"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DataLossError("a record is gone"), "a record is gone"),
        (StreamError("no such stream"), "no such stream"),
        (ValueError("a bug"), "shard orders:shardId-0: ValueError: a bug"),
    ],
)
def test_the_error_of_a_subscription_is_told(error: Exception, said: str) -> None:
    class Broken:
        accepts_loss = False

        async def run(self) -> None:
            raise error

    async def run() -> None:
        failures: list[KinesisEfoError] = []
        feed = feed_by(lambda *_: Broken(), Listener(), SystemClock(), failures.append)
        feed.from_position(TRIM_HORIZON)
        assert feed._task is not None
        await feed._task
        assert list(map(str, failures)) == [said]

    asyncio.run(run())


def test_what_is_received_is_counted() -> None:
    async def run() -> None:
        counts = FetchCounts()
        feed = feed_by(lambda _, sink: Subscription(sink, [RECORDS, STILL, NOTHING]), Listener(), Hand(), counts=counts)
        feed.from_position(TRIM_HORIZON)
        assert feed._task is not None
        await feed._task
        assert counts == FetchCounts(3, len(RECORDS.payload) + len(NOTHING.payload))

    asyncio.run(run())


def test_accepted_loss_is_logged_before_the_shard_ends() -> None:
    class Gone:
        accepts_loss = False

        async def run(self) -> None:
            raise DataLossError("it is gone. To go on, ...", causes=["it is gone"])

    async def run() -> None:
        told: list[tuple[str, bool]] = []

        async def lost(cause: str) -> None:
            told.append((cause, buffer.ended))

        feed = feed_by(lambda *_: Gone(), Listener(), SystemClock(), lost=lost)
        buffer = feed.from_position(TRIM_HORIZON)
        assert feed._task is not None
        await feed._task
        assert told == [("it is gone", False)]
        assert buffer.ended

    asyncio.run(run())
