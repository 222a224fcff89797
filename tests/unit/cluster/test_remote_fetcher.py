"""A fetcher of another process, call by call: a planner that answers what a test says, a real fetcher, a model of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.wire import unpack_error
from kinesis_efo.cluster.remote_fetcher import FetcherIdentity, RemoteFetcher
from kinesis_efo.errors import DataLossError, FetcherUnreachableError, SubscriptionError
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.fetcher import Fetcher, FetcherSettings
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Report, ReportReply, Shard, ShardNews, Work, WorkRequest
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey, ShardRange
from tests.support.model_stream import ModelStream
from tests.support.transports import refused
from tests.support.virtual_time import LoopClock, run

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
        standing: What it is told.
        done: What is told once as done.
        reply: Makes the answer to the next reports, from a report.
        away: Whether nothing comes through.
        failing: Raised for every call, if set.
        forgot: Whether the fetcher counts as dead, until it asks as a new one.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[float, WorkRequest]] = []
        self.reports: list[tuple[float, Report]] = []
        self.shards: list[ShardKey] = []
        self.revision = 1
        self.standing = "working"
        self.done: list[tuple[ShardKey, Position]] = []
        self.seconds = LEASE
        self.number = 0
        self.reply: Callable[[Report], ReportReply] = lambda _report: ReportReply(True, revision=self.revision)
        self.away = False
        self.forgot = False
        self.failing: Exception | None = None
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
        self._check()
        if self.standing == "working" and request.revision == self.revision and not self.done and request.wait:
            changed = asyncio.ensure_future(self._changed.wait())
            await asyncio.wait([changed], timeout=request.wait)
            changed.cancel()
            self._check()
        self.forgot = self.forgot and request.revision > 0
        if self.forgot:
            return Work("unknown")
        if self.standing != "working":
            return Work(self.standing)
        done, self.done = self.done, []
        self.number += 1
        shards = [Shard(key, TRIM_HORIZON) for key in self.shards] if request.revision != self.revision else None
        streams = {} if shards is None else {"orders": REF, "clicks": FURTHER}
        seconds = dict.fromkeys(("orders", "clicks"), self.seconds)
        return Work("working", self.revision, shards, seconds, self.number, done, streams=streams)

    async def report(self, report: Report) -> ReportReply:
        self.reports.append((LoopClock().monotonic(), report))
        self._check()
        return self.reply(report)

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing
        if self.away:
            raise FetcherUnreachableError("the network is cut")

    def told(self, key: ShardKey) -> list[ShardNews]:
        return [news for _, report in self.reports for news in report.shards if news.key == key]


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

    def __init__(self, stream: ModelStream) -> None:
        clock = LoopClock()
        self.stream = stream
        self.planner = Planner()
        self.further = further = FurtherStream()
        self.opened: list[StreamRef] = []
        streams = Streams({"orders": Stream(REF, stream, stream, RetrySettings(), "m.json", clock)}, may_grow=True)
        self.streams = streams

        def open_stream(ref: StreamRef) -> Stream:
            self.opened.append(ref)
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

    @property
    def last_request(self) -> WorkRequest:
        return self.planner.requests[-1][1]


def scenario(
    shards: int = 2,
) -> Callable[[Callable[[Host], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in virtual time, with a fetcher that runs."""

    def wrap(test: Callable[[Host], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def main() -> None:
            async with Host(ModelStream(shards=shards)) as host:
                await test(host)

        def wrapped() -> None:
            run(asyncio.wait_for(main(), 3600))

        wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
        return wrapped

    return wrap


@scenario()
async def test_it_says_who_it_is_and_asks_again_at_once_for_what_is_new(host: Host) -> None:
    first, second = (request for _, request in host.planner.requests[:2])
    assert first == WorkRequest("name-0", 3, "host3", ADDRESS, 1 << 20, 0, 0, 1.0)
    assert (second.revision, second.done) == (1, 1)
    await asyncio.sleep(10)
    times = [at for at, _ in host.planner.requests]
    assert 10 <= len(times) <= 12, "about each second, while nothing is new"
    assert host.planner.reports == [], "there is nothing to tell"
    host.planner.give(FIRST)
    await asyncio.sleep(0.01)
    assert host.read == {FIRST}
    assert host.last_request.revision == host.planner.revision


class RefusingStream(ModelStream):
    """A stream whose first listings are throttled."""

    def __init__(self, refusals: int) -> None:
        super().__init__(shards=1)
        self.refusals = refusals

    async def shards(self, stream_arn: str) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise refused("LimitExceededException", "Rate exceeded", operation="ListShards")
        return await super().shards(stream_arn)


def test_a_fault_of_its_first_listing_that_passes_does_not_end_it() -> None:
    """Its end would be that of all fetchers: they are tasks of one Spark job."""

    async def main() -> None:
        async with Host(RefusingStream(refusals=3)) as host:
            host.planner.give(FIRST)
            await asyncio.sleep(60)
            assert host.read == {FIRST}

    run(asyncio.wait_for(main(), 3600))


@scenario()
async def test_a_shard_that_is_taken_away_is_closed_before_that_is_said(host: Host) -> None:
    host.planner.give(FIRST, SECOND)
    await asyncio.sleep(1)
    assert host.read == {FIRST, SECOND}
    still: list[set[ShardKey]] = []
    ask = host.planner.work

    async def work(request: WorkRequest) -> Work:
        if request.revision == host.planner.revision:
            still.append(host.read)
        return await ask(request)

    host.planner.work = work  # type: ignore[method-assign]
    host.planner.give(SECOND)
    await asyncio.sleep(0.5)
    assert still
    assert still[0] == {SECOND}


@scenario()
async def test_what_begins_is_told_with_the_next_report_although_nothing_came(host: Host) -> None:
    host.planner.give(FIRST)
    await asyncio.sleep(1.5)
    told = host.planner.told(FIRST)
    assert told
    assert (told[0].start, told[0].events) == (TRIM_HORIZON, [])


@scenario()
async def test_events_are_reported_at_once_and_idle_ones_within_a_second(host: Host) -> None:
    host.planner.give(FIRST)
    await asyncio.sleep(8.1)
    assert host.planner.told(FIRST)[-1].events[-1].records == 0, "idle ones come every five seconds"
    before = len(host.planner.told(FIRST))
    host.stream.put(0, 30)
    await asyncio.sleep(0.01)
    (told,) = host.planner.told(FIRST)[before:]
    assert [event.records for event in told.events] == [1]
    numbers = [report.number for _, report in host.planner.reports]
    assert numbers == list(range(1, len(numbers) + 1))


@scenario()
async def test_an_idle_shard_goes_on_being_told_of(host: Host) -> None:
    """If the picture that the planner has of it froze, no offset would move."""
    host.planner.give(FIRST)
    await asyncio.sleep(60)
    through = [str(event.through) for news in host.planner.told(FIRST) for event in news.events]
    assert len(set(through)) >= 10
    assert [Position.parse(each).value for each in through] == sorted(Position.parse(each).value for each in through)
    assert all(news.behind == 0 for news in host.planner.told(FIRST)[1:])


@scenario()
async def test_reports_keep_the_pause_that_the_planner_asks_for(host: Host) -> None:
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


@scenario()
async def test_whoever_is_not_understood_tells_everything_anew(host: Host) -> None:
    host.planner.give(FIRST, SECOND)
    host.stream.put(0, 30)
    host.stream.put(1, 30)
    await asyncio.sleep(2)
    for reply in (ReportReply(known=False), ReportReply(known=True, again=True, revision=2), None):
        if reply is None:
            host.planner.away = True
        else:
            host.planner.reply = lambda _report, reply=reply: reply  # type: ignore[misc]
        host.stream.put(0, 30)
        await asyncio.sleep(0.2)
        refused = len(host.planner.reports)
        host.planner.away = False
        host.planner.reply = lambda _report: ReportReply(True, revision=host.planner.revision)
        host.stream.put(0, 30)
        await asyncio.sleep(2)
        at, again = host.planner.reports[refused]
        assert again.number == 1
        assert {news.key: news.start for news in again.shards} == dict.fromkeys((FIRST, SECOND), TRIM_HORIZON)
        assert at - host.planner.reports[refused - 1][0] == pytest.approx(0.5, abs=0.2), "not at once"
        host.stream.put(0, 30)
        await asyncio.sleep(0.1)
        assert host.planner.reports[refused + 1][1].number == 2


@pytest.mark.parametrize("newer", [0, 1])
def test_a_report_that_is_answered_lets_subscriptions_open_unless_the_planner_has_newer_shards(newer: int) -> None:
    @scenario()
    async def test(host: Host) -> None:
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
        host.stream._events[FIRST.shard].close()  # it is to be opened again
        host.stream._grow()
        await asyncio.sleep(10)
        assert len(host.planner.reports) > asked, "it asks, with a report"
        assert host.read == (set() if newer else {FIRST})
        held.set()
        await asyncio.sleep(10)
        assert host.read == {FIRST}

    test()


@scenario()
async def test_a_stream_that_a_query_brings_is_read_once_it_is_listed_and_holds_nobody_up(host: Host) -> None:
    host.planner.give(FIRST, CLICKS)
    await asyncio.sleep(1)
    assert host.read == {FIRST}
    with pytest.raises(FetcherUnreachableError, match="stream 'clicks' is not listed here yet"):
        host.streams.stream("clicks")
    host.planner.give(FIRST, SECOND, CLICKS)
    await asyncio.sleep(1)
    assert host.read == {FIRST, SECOND}
    host.further.put(0, 3)
    host.further.listed.set_result(None)
    await asyncio.sleep(1)
    assert host.opened == [FURTHER]
    assert host.further.open == {CLICKS.shard: 1}
    assert any(news.events for news in host.planner.told(CLICKS))
    # It is known from now on.
    host.planner.give(FIRST)
    await asyncio.sleep(1)
    assert host.further.open == {CLICKS.shard: 0}
    host.planner.give(FIRST, CLICKS)
    await asyncio.sleep(8)
    assert host.further.open == {CLICKS.shard: 1}
    assert host.opened == [FURTHER]


@scenario()
async def test_a_shard_that_is_taken_away_before_its_stream_is_listed_is_not_read(host: Host) -> None:
    host.planner.give(FIRST, CLICKS)
    await asyncio.sleep(1)
    host.planner.give(FIRST)
    await asyncio.sleep(1)
    host.further.listed.set_result(None)
    await asyncio.sleep(1)
    assert [feed.key for feed in host.fetcher.feeds] == [FIRST]
    assert host.further.subscribed == []
    assert host.planner.told(CLICKS) == []


@scenario()
async def test_a_shard_that_comes_again_before_its_stream_is_listed_is_read(host: Host) -> None:
    for shards in ([FIRST, CLICKS], [FIRST], [FIRST, CLICKS]):
        host.planner.give(*shards)
        await asyncio.sleep(1)
    host.further.listed.set_result(None)
    await asyncio.sleep(1)
    assert host.opened == [FURTHER]
    assert host.further.open == {CLICKS.shard: 1}


@scenario()
async def test_a_stream_that_cannot_be_listed_ends_the_fetcher(host: Host) -> None:
    host.planner.give(FIRST, CLICKS)
    await asyncio.sleep(1)
    host.further.listed.set_exception(RuntimeError("not listed"))
    with pytest.raises(SubscriptionError, match=r"stream 'clicks': .* not listed"):
        await host.task
    assert not list(host.fetcher.feeds)


@scenario()
async def test_commits_drop_what_is_done(host: Host) -> None:
    host.planner.give(FIRST)
    host.stream.put(0, 30, 30)
    await asyncio.sleep(0.5)
    (feed,) = host.fetcher.feeds
    assert feed.buffer is not None
    assert feed.buffer.held > 0
    end = feed.buffer.end
    host.planner.done = [(FIRST, end)]
    host.planner.notify()
    await asyncio.sleep(0.1)
    assert feed.buffer.held == 0
    assert feed.buffer.start == end
    assert host.last_request.done == host.planner.number, "it has heard that"


@scenario()
async def test_an_error_is_told_with_each_report_and_does_not_end_the_fetcher(host: Host) -> None:
    host.planner.give(FIRST)
    await asyncio.sleep(1)
    host.fetcher._failed(DataLossError("a shard is gone"))
    host.planner.done = [(FIRST, Position.after(2000))]
    host.planner.notify()
    await asyncio.sleep(3)
    failures = [unpack_error(report.failure) for _, report in host.planner.reports if report.failure]
    assert len(failures) >= 3
    assert all(isinstance(error, DataLossError) and str(error) == "a shard is gone" for error in failures)
    assert not host.task.done(), "its planner says when it ends"


@scenario()
async def test_one_that_stands_by_asks_each_second_and_reads_nothing(host: Host) -> None:
    host.planner.standing = "standby"
    host.planner.notify()
    await asyncio.sleep(1)
    before = len(host.planner.requests)
    await asyncio.sleep(10)
    assert 9 <= len(host.planner.requests) - before <= 11
    assert host.read == set()


@scenario()
async def test_one_whose_shards_were_given_away_closes_them_and_begins_anew_under_another_name(host: Host) -> None:
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


@scenario()
async def test_an_answer_from_before_it_gave_its_shards_up_tells_nothing(host: Host) -> None:
    host.planner.give(FIRST)
    await asyncio.sleep(1)
    ask, held = host.planner.work, asyncio.Event()

    async def work(request: WorkRequest) -> Work:
        answer = await ask(request)
        await held.wait()
        return answer

    host.planner.work = work  # type: ignore[method-assign]
    await asyncio.sleep(LEASE + 2)
    assert host.read == set(), "its lease is over"
    host.planner.give(SECOND)
    ask_now = len(host.planner.requests)
    held.set()
    await asyncio.sleep(1)
    assert host.planner.requests[ask_now][1].revision == 0, "it asks as one that reads nothing"
    assert host.read == {SECOND}


@scenario()
async def test_it_stops_reading_when_nothing_is_heard_and_gives_up_after_a_minute(host: Host) -> None:
    host.planner.give(FIRST, SECOND)
    await asyncio.sleep(2)
    host.planner.away = True
    began = LoopClock().monotonic()
    before = len(host.planner.requests)
    await asyncio.sleep(LEASE - 2.5)  # the last answer is to a question of up to two seconds ago
    assert host.read == {FIRST, SECOND}
    await asyncio.sleep(2.6)
    assert host.read == set()
    with pytest.raises(FetcherUnreachableError, match=r"host3 has heard nothing of the run for 6\d s, given up: the"):
        await host.task
    assert GIVE_UP - 2 <= LoopClock().monotonic() - began <= GIVE_UP + 2
    assert len(host.planner.requests) - before == pytest.approx(2 * GIVE_UP, abs=4), "two a second"
    assert not list(host.fetcher.feeds)


@scenario()
async def test_whoever_comes_back_within_a_minute_goes_on(host: Host) -> None:
    host.planner.give(FIRST)
    for _ in range(3):
        host.planner.away = True
        await asyncio.sleep(GIVE_UP - 3)
        host.planner.away = False
        await asyncio.sleep(3)
        assert host.read == {FIRST}


@scenario()
async def test_reads_that_wait_go_on_once_their_shard_may_be_read(host: Host) -> None:
    host.stream.put(0, 30)
    await asyncio.sleep(0.3)
    wanted = ShardRange(FIRST, TRIM_HORIZON, Position.after(host.stream[0].records[0][0]))
    reading = asyncio.create_task(anext(host.fetcher.read(wanted)))  # type: ignore[arg-type]
    await asyncio.sleep(1.2)
    host.planner.give(FIRST)
    await asyncio.sleep(0.05)
    assert reading.done(), "at once, not with the next look"
    assert await reading


@scenario()
async def test_reads_that_wait_end_with_the_fetcher(host: Host) -> None:
    wanted = ShardRange(FIRST, Position.after(1), Position.after(10**6))
    waiting = asyncio.create_task(anext(host.fetcher.read(wanted)))  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    host.planner.give(SECOND)
    other = asyncio.create_task(anext(host.fetcher.read(wanted._replace(key=SECOND))))  # type: ignore[arg-type]
    await asyncio.sleep(0.2)
    began = LoopClock().monotonic()
    host.planner.standing = "over"
    host.planner.notify()
    for task in (waiting, other):
        with pytest.raises(FetcherUnreachableError, match="its query has ended"):
            await task
    assert LoopClock().monotonic() - began < 0.1


@scenario()
async def test_at_the_end_it_says_that_it_reads_nothing_any_more(host: Host) -> None:
    host.planner.give(FIRST, SECOND)
    await asyncio.sleep(1)
    host.planner.standing = "over"
    host.planner.notify()
    await host.task
    last = host.last_request
    assert (last.revision, last.done, last.wait) == (0, 0, 0.0)
    assert host.read == set()
    assert not list(host.fetcher.feeds)
    assert not [task for task in asyncio.all_tasks() if "RemoteFetcher" in repr(task) or "watching" in task.get_name()]


@scenario()
async def test_whatever_ends_one_of_its_tasks_ends_the_fetcher(host: Host) -> None:
    host.planner.give(FIRST)
    await asyncio.sleep(1)
    host.planner.failing = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        await host.task
    assert not list(host.fetcher.feeds)


def test_its_streams_are_listed_before_it_asks_for_work() -> None:
    async def main() -> None:
        async with Host(ModelStream()) as host:
            assert host.streams.stream("orders").listings == 1

    run(main())


def test_one_that_never_hears_of_its_planner_gives_up_as_well() -> None:
    async def main() -> None:
        host = Host(ModelStream())
        host.planner.away = True
        began = LoopClock().monotonic()
        async with host:
            with pytest.raises(FetcherUnreachableError, match="has heard nothing of the run for 60 s"):
                await host.task
        assert LoopClock().monotonic() - began == pytest.approx(GIVE_UP, abs=0.1)

    run(main())
