"""What a cluster answers to each call of its planner, its fetchers and its tasks: call by call, in virtual time, without any fetcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.cluster.cluster import Cluster
from kinesis_efo.cluster.snapshots import ShardSnapshots
from kinesis_efo.decisions.losses import Known
from kinesis_efo.decisions.planning import ShardProgress
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import (
    Report,
    ReportReply,
    ShardNews,
    WhereReply,
    WhereRequest,
    Work,
    WorkRequest,
)
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Offset, Position, ShardKey, ShardRange
from kinesis_efo.records.events import ChildShard
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import LoopClock, run

REFS = {name: StreamRef(name, f"dev-{name}", f"arn:{name}", f"arn:{name}/consumer") for name in ("clicks", "orders")}
FIRST, SECOND = (ShardKey("orders", f"shardId-00000000000{number}") for number in range(2))
CLICKS = ShardKey("clicks", "shardId-000000000000")
NO_LIMIT = 1 << 60
TIMEOUT = 10.0
BUDGET = 1 << 20


def address(place: int) -> FetcherAddress:
    return FetcherAddress(f"host{place}", 4000 + place)


class Coordinator:
    """What the planner is for its cluster."""

    def __init__(self) -> None:
        self.failure = Failure()
        self.until: dict[tuple[ShardKey, Position], float] = {}

    def may_read(self, shard: ShardKey) -> bool:
        return True

    def known(self, shard: ShardKey, position: Position) -> Known:
        return Known(self.until.get((shard, position)))


class Centre:
    """A cluster, and the calls of fetchers with names such as `f0`, whose number is their place."""

    def __init__(self, model: ModelStream, names: tuple[str, ...] = ("orders",), timeout: float = TIMEOUT) -> None:
        clock = LoopClock()
        self.model = model
        self.streams = Streams(
            {name: Stream(REFS[name], model, model, RetrySettings(), "m.json", clock) for name in names}
        )
        self.seconds = dict.fromkeys(names, 8.0)
        self.coordinator = Coordinator()
        self.gone: set[FetcherAddress] = set()
        self.cluster = Cluster(
            self.streams,
            self.seconds.__getitem__,
            timeout,
            clock,
            gone=self._is_gone,
            problem=lambda: "Spark has no cores.",
        )
        self.query = self.cluster.join()
        self._reports: dict[str, int] = {}

    async def __aenter__(self) -> Centre:
        await self.streams.refresh()
        self.cluster.start(self.coordinator)  # type: ignore[arg-type]
        for name in self.streams.streams:
            self.cluster.begin(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cluster.stop()

    async def _is_gone(self, at: FetcherAddress) -> bool:
        return at in self.gone

    async def work(self, name: str, revision: int = 0, done: int = 0, wait: float = 0.0, **more: Any) -> Work:
        place = int(name[1:])
        request = WorkRequest(name, place, f"host{place}", address(place), BUDGET, revision, done, wait, **more)
        return await self.cluster.assignments.work(request)

    async def working(self, name: str) -> Work:
        """Let a fetcher come, or ask again, and follow the answer at once."""
        work = await self.work(name)
        await self.work(name, work.revision, work.number)
        return work

    def fetchers(self) -> list[tuple[str, int]]:
        """The host of each fetcher, with the number of its shards."""
        return [(member.request.host, len(member.shards)) for member in self.cluster.assignments.members]

    async def report(self, name: str, *news: ShardNews, anew: bool = False, failure: bytes = b"") -> ReportReply:
        self._reports[name] = 1 if anew else self._reports.get(name, 0) + 1
        return await self.cluster.assignments.report(Report(name, self._reports[name], list(news), failure))

    async def where(self, *keys: ShardKey, wait: float = 0.0) -> WhereReply:
        ranges = [ShardRange(key, TRIM_HORIZON, SHARD_END) for key in keys]
        return await self.cluster.assignments.where(WhereRequest.of(ranges, wait))

    async def poll(self, offset: Offset, at_most: float = 0.0) -> dict[ShardKey, ShardProgress]:
        told = await self.query.poll(offset, NO_LIMIT, NO_LIMIT, at_most)
        return {each.key: each for each in told}

    async def commit(self, offset: Offset) -> None:
        self.query.commit(offset)

    @property
    def buffers(self) -> ShardSnapshots:
        """What micro-batches are planned from."""
        return self.cluster._snapshots

    def owner(self, key: ShardKey) -> FetcherAddress | None:
        return self.cluster.assignments.address(key)


def news(key: ShardKey, *events: BufferedEvent, start: str | None = None, **told: Any) -> ShardNews:
    return ShardNews(key, None if start is None else Position.parse(start), events, **told)


def event(through: int, records: int = 1, size: int | None = None) -> BufferedEvent:
    last = LastRecord(through) if records else None
    return BufferedEvent(Position.after(through), 100 * records if size is None else size, records, last, ())


BOTH = Offset({FIRST: TRIM_HORIZON, SECOND: TRIM_HORIZON})
ONE = Offset({FIRST: TRIM_HORIZON})


def scenario(
    shards: int = 2, names: tuple[str, ...] = ("orders",), timeout: float = TIMEOUT
) -> Callable[[Callable[[Centre], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Run a test in virtual time, with a centre."""

    def wrap(test: Callable[[Centre], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def main() -> None:
            async with Centre(ModelStream(shards=shards), names, timeout) as centre:
                await test(centre)

        def wrapped() -> None:
            run(asyncio.wait_for(main(), 3600))

        wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
        return wrapped

    return wrap


async def soon(task: asyncio.Task[Any]) -> Any:
    """The result of what is due at this very moment."""
    async with asyncio.timeout(0.001):
        return await task


# -- work


@scenario()
async def test_fetchers_are_told_of_commits_once_and_again_if_the_answer_was_lost(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    work = await centre.working("f0")
    waiting = asyncio.create_task(centre.work("f0", work.revision, 2, wait=5.0))
    await asyncio.sleep(1)
    centre.cluster.commit(Offset({FIRST: Position.after(20), SECOND: TRIM_HORIZON}))
    told = await soon(waiting)
    assert told.done == [(FIRST, Position.after(20))]
    assert told.shards is None
    heard = await centre.work("f0", work.revision, told.number)
    assert heard.done == [], "it has heard that"
    lost = await centre.work("f0", work.revision, told.number)
    assert dict(lost.done) == {FIRST: Position.after(20), SECOND: TRIM_HORIZON}, "it has not heard the last answer"
    # What nobody waits for is told with the next question, at once.
    centre.cluster.commit(Offset({FIRST: Position.after(30), SECOND: TRIM_HORIZON}))
    waiting = asyncio.create_task(centre.work("f0", work.revision, lost.number, wait=5.0))
    assert (await soon(waiting)).done == [(FIRST, Position.after(30))]


@scenario()
async def test_a_second_attempt_waits_and_one_that_counted_as_dead_begins_anew(centre: Centre) -> None:
    await centre.working("f0")
    request = WorkRequest("another", 0, "host9", address(9), BUDGET, 0, 0, 0.0)
    assert await centre.cluster.assignments.work(request) == Work("standby")
    assert await centre.work("f7", revision=3) == Work("unknown")
    assert centre.fetchers() == [("host0", 0)]
    assert centre.cluster.room == BUDGET, "they buffer nothing"


# -- the end


@scenario()
async def test_whoever_breaks_off_at_the_end_has_said_nothing(
    centre: Centre,
) -> None:
    await centre.working("f0")
    stopping = asyncio.create_task(centre.cluster.stop())
    await asyncio.sleep(1)
    centre.cluster.assignments.dropped("f0")
    assert len(centre.fetchers()) == 1
    await stopping


# -- reports


@scenario()
async def test_a_report_of_records_at_the_tip_ends_a_wait_for_more_and_no_other_does(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await centre.working("f0")
    await centre.report("f0", news(FIRST, event(20), start="TRIM_HORIZON", behind=60_000))
    assert (await centre.poll(BOTH))[FIRST].millis_behind == 60_000
    waiting = asyncio.create_task(centre.query.until_tip(3.0))
    for each in (news(SECOND, event(20, 0), start="TRIM_HORIZON", behind=0), news(FIRST, event(30), behind=1001)):
        await asyncio.sleep(1)
        await centre.report("f0", each)
        assert not waiting.done()
    await asyncio.sleep(0.5)
    await centre.report("f0", news(SECOND, event(30), behind=1000))
    await soon(waiting)
    told = await centre.poll(BOTH)
    assert {key: each.records for key, each in told.items()} == {FIRST: 2, SECOND: 1}


@scenario()
async def test_a_report_without_the_beginning_of_a_shard_is_asked_for_again(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await centre.working("f0")
    reply = await centre.report("f0", news(FIRST, event(20)), news(SECOND, event(30), start="TRIM_HORIZON"))
    assert reply.again
    assert [each.key for each in centre.cluster.statuses()] == [SECOND]


@pytest.mark.parametrize("start", ["TRIM_HORIZON", "AT_TIMESTAMP:1700000000000"])
def test_a_silent_shard_begins_anew_for_a_query_if_only_an_event_would_show_whether_its_buffer_covers_the_query(
    start: str,
) -> None:
    @scenario(shards=1)
    async def test(centre: Centre) -> None:
        centre.cluster.expect(Offset({FIRST: Position.parse(start)}))
        centre.cluster.join("later")
        await centre.working("f0")
        await centre.report("f0", news(FIRST, start=start))
        assert centre.cluster.buffered(FIRST, Position.after(20)) is None
        assert centre.owner(FIRST) == address(0), "an event may come"
        await centre.report("f0", news(FIRST, quiet=2.0))
        assert centre.cluster.buffered(FIRST, Position.after(20)) is None
        assert centre.owner(FIRST) is None
        assert centre.cluster.assignments.reached == {FIRST: Position.after(20)}

    test()


@scenario(shards=1)
async def test_children_that_a_report_announces_begin_after_their_parent(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    await centre.working("f0")
    low, high = centre.model[0].hashes
    child = ChildShard("shardId-000000000001", (FIRST.shard,), low, high)
    other = ChildShard("shardId-000000000002", (FIRST.shard, "shardId-000000000009"), low, high)
    listings = centre.streams.stream("orders").listings
    await centre.report(
        "f0", news(FIRST, BufferedEvent(SHARD_END, 0, 0, None, ()), start="TRIM_HORIZON", children=[child, other])
    )
    assert ("orders", child.shard_id) in centre.streams.starting({FIRST: SHARD_END})
    await asyncio.sleep(1)
    assert centre.streams.stream("orders").listings == listings + 1, "one has a parent that is not known: listed soon"


# -- commits


@scenario(shards=1)
async def test_a_shard_that_comes_again_is_closed_first_by_the_fetcher_that_was_not_told_of_its_end(
    centre: Centre,
) -> None:
    centre.cluster.expect(ONE)
    work = await centre.working("f0")
    centre.cluster.commit(Offset({FIRST: SHARD_END}))
    centre.cluster.expect(Offset({FIRST: Position.after(50)}))
    assert centre.owner(FIRST) is None
    closing = await centre.work("f0", work.revision, 2)
    assert closing.shards == [], "it would go on where it is"
    again = await centre.work("f0", closing.revision, closing.number)
    assert again.shards is not None
    assert [(shard.key, shard.start) for shard in again.shards] == [(FIRST, Position.after(50))]


@scenario(shards=1)
async def test_without_get_records_a_shard_goes_back_for_a_query_that_is_behind_once_no_task_reads_from_a_fetcher(
    centre: Centre,
) -> None:
    behind = centre.cluster.join("behind")
    centre.query.follow(Offset({FIRST: Position.after(50)}))
    work = await centre.working("f0")
    await centre.report("f0", news(FIRST, event(90), start="AFTER:50"))
    read = await centre.work("f0", work.revision, 2, reading=True)
    assert behind.buffers.buffered(FIRST, Position.after(20)) is None
    assert centre.owner(FIRST) == address(0)
    await centre.work("f0", work.revision, read.number)
    assert behind.buffers.buffered(FIRST, Position.after(20)) is None
    assert centre.owner(FIRST) is None
    assert centre.cluster.assignments.reached == {FIRST: Position.after(20)}


# -- who reads what


@scenario(shards=1, names=("clicks", "orders"))
async def test_shards_are_read_only_while_their_stream_may_be(centre: Centre) -> None:
    centre.cluster.expect(Offset({CLICKS: TRIM_HORIZON, FIRST: TRIM_HORIZON}))
    work = await centre.working("f0")
    assert work.seconds == {"clicks": 8.0, "orders": 8.0}
    await centre.report("f0", *(news(key, event(20), start="TRIM_HORIZON") for key in (CLICKS, FIRST)))
    assert [each.key for each in centre.cluster.statuses("clicks")] == [CLICKS]
    assert [each.key for each in centre.cluster.statuses("orders")] == [FIRST]
    assert {each.key for each in centre.cluster.statuses()} == {CLICKS, FIRST}
    waiting = asyncio.create_task(centre.work("f0", work.revision, 2, wait=5.0))
    await asyncio.sleep(0)
    centre.cluster.end("clicks")
    told = await soon(waiting)
    assert [shard.key for shard in told.shards] == [FIRST]
    assert centre.owner(CLICKS) is None
    assert [each.key for each in centre.cluster.statuses()] == [FIRST]
    await centre.work("f0", told.revision, told.number)
    centre.cluster.begin("clicks")
    assert centre.owner(CLICKS) == address(0)


@scenario(shards=1)
async def test_what_was_let_go_of_is_told_again_once_it_is_read_again(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    work = await centre.working("f0")
    await centre.report("f0", news(FIRST, event(20, 0), start="TRIM_HORIZON"))
    offset = Offset({FIRST: Position.after(20)})
    await centre.poll(ONE)
    assert await centre.poll(offset) == {}
    letting = asyncio.create_task(centre.cluster.let_go([FIRST]))
    told = await centre.work("f0", work.revision, 2)
    await centre.work("f0", told.revision, told.number)
    await letting
    await centre.poll(offset)
    assert centre.owner(FIRST) == address(0), "the same offset asks for it again"
    await centre.report("f0", news(FIRST, event(30, 0), start="AFTER:20"))
    assert (await centre.poll(offset))[FIRST].through == Position.after(30)


@scenario(shards=1)
async def test_rows_bear_the_time_up_to_which_a_shard_was_read_and_its_status_tells_its_subscription(
    centre: Centre,
) -> None:
    centre.cluster.expect(ONE)
    await centre.working("f0")
    assert centre.cluster.read_until(FIRST, TRIM_HORIZON) is None
    told = Subscription("open", 1, 0, 100, 0.0)
    await centre.report(
        "f0",
        news(
            FIRST,
            event(20),
            start="TRIM_HORIZON",
            read_until=1_700_000_000.0,
            subscription=told,
        ),
    )
    assert centre.cluster.read_until(FIRST, Position.after(20)) == 1_700_000_000.0
    assert centre.cluster.read_until(FIRST, Position.after(10)) is None
    (status,) = centre.cluster.statuses()
    assert (status.fetcher, status.subscription) == ("0 on host0", told)


# -- those who are silent


@scenario(shards=4)
async def test_shards_move_once_it_is_measured_what_they_bring(centre: Centre) -> None:
    keys = [ShardKey("orders", f"shardId-00000000000{number}") for number in range(4)]
    centre.cluster.expect(Offset(dict.fromkeys(keys, TRIM_HORIZON)))
    followed = {"f0": (0, 0), "f1": (0, 0)}

    async def ask(seconds: float) -> None:
        for _ in range(round(2 * seconds)):
            for name, (revision, done) in followed.items():
                work = await centre.work(name, revision, done)
                followed[name] = work.revision, work.number
            await asyncio.sleep(0.5)

    await ask(2)
    busy = [key for key in keys if centre.owner(key) == address(0)]
    assert len(busy) == 2
    await centre.report("f0", *(news(key, event(20, size=9_000_000), start="TRIM_HORIZON") for key in busy))
    await ask(5)
    assert [key for key in keys if centre.owner(key) == address(0)] == busy, "it is not measured yet"
    await ask(5)
    assert {centre.owner(key) for key in busy} == {address(0), address(1)}
    assert None not in map(centre.owner, keys)
