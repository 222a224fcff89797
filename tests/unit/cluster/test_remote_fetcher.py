"""A fetcher of another process, call by call: a planner that answers what a test says, a real fetcher, a model of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import SystemClock
from kinesis_efo.cluster.remote_fetcher import Assignment, FetcherIdentity, RemoteFetcher
from kinesis_efo.errors import RetriesExhaustedError, SubscriptionError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Order, Report, ReportReply, RowKey, Work, WorkRequest
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, ShardKey
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import LoopClock

REF = StreamRef("orders", "dev-orders", "arn:stream", "arn:consumer")
FIRST, SECOND = (ShardKey("orders", f"shardId-00000000000{number}") for number in range(2))
CLICKS = ShardKey("clicks", "shardId-000000000000")
FURTHER = StreamRef("clicks", "dev-clicks", "arn:clicks", None)
ADDRESS = FetcherAddress("here", 4000)
GIVE_UP = 60.0
LEASE = 10.0


class Planner:
    """Answers as a planner does, with the shards that a test gives.

    Attributes:
        requests: The requests for work, with when they came.
        reports: The reports, with when they came.
        shards: What the fetcher may read, by its newest revision.
        reply: Makes the answer to the next reports, from a report.
        forgot: Whether the fetcher counts as dead, until it asks as a new one.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[float, WorkRequest]] = []
        self.reports: list[tuple[float, Report]] = []
        self.shards: list[ShardKey] = []
        self.revision = 1
        self.seconds = LEASE
        self.number = 0
        self.reply: Callable[[Report], ReportReply] = lambda _report: ReportReply(True, revision=self.revision)
        self.forgot = False
        self._changed = asyncio.Event()

    def give(self, *shards: ShardKey) -> None:
        self.shards = list(shards)
        self.revision += 1
        self.notify()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def work(self, request: WorkRequest) -> Work:
        self.requests.append((LoopClock().monotonic(), request))
        if request.revision == self.revision and request.wait:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), request.wait)
        self.forgot = self.forgot and request.revision > 0
        if self.forgot:
            return Work("unknown")
        self.number += 1
        shards = self.shards if request.revision != self.revision else None
        orders = [(key, Order(1, TRIM_HORIZON, TRIM_HORIZON)) for key in shards or ()]
        streams = {} if shards is None else {"orders": REF, "clicks": FURTHER}
        seconds = dict.fromkeys(("orders", "clicks"), self.seconds)
        return Work("working", self.revision, shards, seconds, self.number, orders, streams=streams)

    async def report(self, report: Report) -> ReportReply:
        self.reports.append((LoopClock().monotonic(), report))
        return self.reply(report)


class FurtherStream(ModelStream):
    """A stream that is listed when a test lets it be, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def shards(self, *args: Any, **more: Any) -> Any:
        await asyncio.shield(self.listed)
        return await super().shards(*args, **more)


class Host:
    """A fetcher and its planner.

    Attributes:
        further: A stream that it has not read from the beginning.
        task: The fetcher's run.
    """

    def __init__(self) -> None:
        clock = LoopClock()
        self.stream = stream = ModelStream(shards=2)
        self.planner = Planner()
        self.further = further = FurtherStream()
        streams = Streams({"orders": Stream(REF, stream, stream, RetrySettings(), "m.json", clock)}, may_grow=True)

        def open_stream(ref: StreamRef) -> Stream:
            return Stream(ref, further, further, RetrySettings(), "m.json", clock)

        self.fetcher = Fetcher(streams, Budget(1 << 20, now=clock.monotonic), FetcherSettings(True, 30.0), clock)
        names = iter(f"name-{number}" for number in range(100))
        self.remote = RemoteFetcher(
            FetcherIdentity(3, "host3", ADDRESS),
            self.fetcher,
            streams,
            self.planner,
            clock,
            lambda: next(names),
            GIVE_UP,
            open_stream,
        )
        self.task: asyncio.Task[None]

    async def __aenter__(self) -> Host:
        self.task = asyncio.create_task(self.remote.run())
        await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    @property
    def read(self) -> set[ShardKey]:
        """The shards whose subscription is open."""
        return {ShardKey("orders", shard) for shard, number in self.stream.open.items() if number}


async def test_reports_keep_the_pause_that_the_planner_asks_for() -> None:
    async with Host() as host:
        host.planner.reply = lambda _report: ReportReply(True, revision=host.planner.revision, pause=0.5)
        host.planner.give(FIRST)
        await asyncio.sleep(2)
        before = len(host.planner.reports)
        for _ in range(200):
            host.stream.put(0, 30)
            await asyncio.sleep(0.01)
        times = [at for at, _ in host.planner.reports[before:]]
        assert 3 <= len(times) <= 5
        assert all(later - earlier >= 0.499 for earlier, later in pairwise(times))


@pytest.mark.parametrize("newer", [0, 1])
async def test_answered_report_permits_subscriptions_to_current_shards(newer: int) -> None:
    async with Host() as host:
        host.planner.seconds = 100.0
        host.planner.give(FIRST)
        await asyncio.sleep(6)
        ask, held = host.planner.work, asyncio.Event()

        async def work(request: WorkRequest) -> Work:
            await held.wait()
            return await ask(request)

        host.planner.work = work  # type: ignore[method-assign]
        await asyncio.sleep(1.5)
        host.planner.reply = lambda _report: ReportReply(True, revision=host.planner.revision + newer)
        asked = len(host.planner.reports)
        host.stream.events[FIRST.shard].close()  # it is to be opened again
        host.stream.grow()
        await asyncio.sleep(10)
        assert len(host.planner.reports) > asked, "it asks, with a report"
        assert host.read == (set() if newer else {FIRST})
        held.set()
        await asyncio.sleep(10)
        assert host.read == {FIRST}


async def test_a_stream_that_cannot_be_listed_ends_the_fetcher() -> None:
    async with Host() as host:
        host.planner.give(FIRST, CLICKS)
        await asyncio.sleep(1)
        host.further.listed.set_exception(OSError("not listed"))
        with pytest.raises(SubscriptionError, match=r"stream 'clicks': .* not listed"):
            await host.task
        assert not list(host.fetcher)


async def test_replaced_fetcher_closes_its_shards_and_rejoins() -> None:
    async with Host() as host:
        host.planner.give(FIRST, SECOND)
        host.stream.put(0, 30)
        await asyncio.sleep(2)
        assert host.planner.reports[-1][1].number > 1
        before, told = len(host.planner.requests), len(host.planner.reports)
        host.planner.forgot = True
        host.planner.notify()
        await asyncio.sleep(0.1)
        assert host.read == set()
        await asyncio.sleep(6)
        again = host.planner.requests[before][1]
        assert (again.name, again.revision, again.done) == ("name-1", 0, 0)
        assert len(host.stream.subscribed) == 4, "they were closed and opened again"
        await asyncio.sleep(2)
        first = next(report for _, report in host.planner.reports[told:] if report.name == "name-1")
        assert first.number == 1
        assert {news.key: news.start for news in first.shards} == dict.fromkeys((FIRST, SECOND), TRIM_HORIZON)
        assert host.read == {FIRST, SECOND}
        assert host.stream.collisions == []


def test_error_of_one_query_does_not_end_the_fetcher() -> None:
    assignment = Assignment(SystemClock(), lambda: None)
    assignment.failed(RowKey("clicks", ShardKey("orders", "s0")), RetriesExhaustedError("no progress"))
    assert assignment.failure.error is None and assignment.failures.keys() == {"clicks"}
