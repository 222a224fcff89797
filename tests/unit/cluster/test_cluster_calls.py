"""What a cluster answers to each call of its planner, its fetchers and its tasks: call by call, in virtual time, without any fetcher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.wire import pack_error
from kinesis_efo.cluster.cluster import Cluster
from kinesis_efo.cluster.snapshots import ShardSnapshots
from kinesis_efo.decisions.losses import Known
from kinesis_efo.decisions.planning import ShardProgress
from kinesis_efo.errors import DataLossError, FetcherError, FetcherUnreachableError
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
async def test_a_fetcher_is_told_its_shards_where_they_begin_and_for_how_long(centre: Centre) -> None:
    centre.coordinator.until[FIRST, TRIM_HORIZON] = 1_700_000_000.0
    centre.cluster.expect(BOTH)
    work = await centre.work("f0")
    assert (work.standing, work.number, sorted(work.done)) == (
        "working",
        1,
        [(FIRST, TRIM_HORIZON), (SECOND, TRIM_HORIZON)],
    )
    assert work.shards is not None
    assert [(shard.key, shard.start, shard.known.read_until) for shard in work.shards] == [
        (FIRST, TRIM_HORIZON, 1_700_000_000.0),
        (SECOND, TRIM_HORIZON, None),
    ]
    assert work.streams == {"orders": REFS["orders"]}
    assert work.seconds == {"orders": 8.0}
    centre.seconds["orders"] = -1.0
    assert (await centre.work("f0", work.revision, 1)).seconds == {"orders": 0.0}


@scenario()
async def test_a_fetcher_that_has_the_newest_shards_is_not_told_them_again(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    work = await centre.work("f0")
    again = await centre.work("f0", work.revision, work.number)
    assert (again.shards, again.revision, again.number, again.done) == (None, work.revision, 2, [])
    assert again.streams == {}


@scenario()
async def test_the_first_answer_comes_at_once_although_there_is_nothing_to_do(centre: Centre) -> None:
    work = await soon(asyncio.create_task(centre.work("f0", wait=5.0)))
    assert (work.standing, work.shards, work.done) == ("working", [], [])


@scenario()
async def test_who_asks_waits_until_there_is_something_new(centre: Centre) -> None:
    work = await centre.work("f0")
    began = LoopClock().monotonic()
    waited = await centre.work("f0", work.revision, work.number, wait=5.0)
    assert LoopClock().monotonic() == began + 5
    assert waited.revision == work.revision
    waiting = asyncio.create_task(centre.work("f0", waited.revision, waited.number, wait=5.0))
    await asyncio.sleep(1)
    centre.cluster.expect(ONE)
    told = await soon(waiting)
    assert [shard.key for shard in told.shards] == [FIRST]


@scenario()
async def test_who_asks_with_an_older_revision_is_answered_at_once(centre: Centre) -> None:
    work = await centre.work("f0")
    centre.cluster.expect(ONE)
    told = await soon(asyncio.create_task(centre.work("f0", work.revision, work.number, wait=5.0)))
    assert [shard.key for shard in told.shards] == [FIRST]


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
async def test_a_commit_that_moves_nothing_wakes_nobody(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    work = await centre.working("f0")
    waiting = asyncio.create_task(centre.work("f0", work.revision, 2, wait=5.0))
    await asyncio.sleep(1)
    began = LoopClock().monotonic()
    centre.cluster.commit(ONE)
    await waiting
    assert LoopClock().monotonic() == began + 4


@scenario()
async def test_a_second_attempt_waits_and_one_that_counted_as_dead_begins_anew(centre: Centre) -> None:
    await centre.working("f0")
    request = WorkRequest("another", 0, "host9", address(9), BUDGET, 0, 0, 0.0)
    assert await centre.cluster.assignments.work(request) == Work("standby")
    assert await centre.work("f7", revision=3) == Work("unknown")
    assert centre.fetchers() == [("host0", 0)]
    assert centre.cluster.room == BUDGET, "they buffer nothing"


@scenario()
async def test_one_that_is_given_up_while_it_waits_is_told_so(centre: Centre) -> None:
    work = await centre.working("f0")
    waiting = asyncio.create_task(centre.work("f0", work.revision, 2, wait=5.0))
    await asyncio.sleep(1)
    centre.cluster.assignments.dropped("f0")
    assert await waiting == Work("unknown")


@scenario()
async def test_the_first_request_of_a_fetcher_shares_the_shards_out_and_later_ones_do_not(
    centre: Centre,
) -> None:
    centre.cluster.expect(BOTH)
    first = await centre.working("f0")
    assert first.shards is not None
    assert len(first.shards) == 2
    second = await centre.work("f1")
    assert second.shards == [], "the first has to close one before"
    told = await centre.work("f0", first.revision, 2)
    assert told.shards is not None
    (kept,) = [shard.key for shard in told.shards]
    (moved,) = {FIRST, SECOND} - {kept}
    assert centre.owner(moved) is None
    await centre.work("f0", told.revision, told.number)
    assert centre.owner(moved) == address(1)
    assert centre.fetchers() == [("host0", 1), ("host1", 1)]


def test_that_a_fetcher_has_come_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    @scenario()
    async def test(centre: Centre) -> None:
        for _ in range(3):
            await centre.working("f0")

    with caplog.at_level(logging.INFO, logger="kinesis_efo.cluster.assignments"):
        test()
    assert [message for message in caplog.messages if "has come" in message] == ["fetcher 0 on host0 has come"]


@scenario()
async def test_what_fetchers_may_buffer_and_whether_tasks_read_there(centre: Centre) -> None:
    assert (centre.cluster.room, centre.cluster.reading) == (0, False)
    first = await centre.work("f0", reading=True)
    await centre.work("f1")
    assert (centre.cluster.room, centre.cluster.reading) == (2 * BUDGET, True)
    await centre.work("f0", first.revision, first.number)
    assert not centre.cluster.reading
    centre.cluster.assignments.dropped("f0")
    assert centre.cluster.room == BUDGET


# -- the end


@scenario()
async def test_stopping_tells_everybody_and_waits_until_they_have_said_so(centre: Centre) -> None:
    works = {name: await centre.working(name) for name in ("f0", "f1")}
    waiting = [asyncio.create_task(centre.work(name, work.revision, 2, wait=50.0)) for name, work in works.items()]
    polling = asyncio.create_task(centre.poll(Offset({}), 50.0))
    await asyncio.sleep(1)
    centre.coordinator.failure.stop()
    stopping = asyncio.create_task(centre.cluster.stop())
    for task in waiting:
        assert await soon(task) == Work("over")
    with pytest.raises(FetcherUnreachableError, match="its query has ended"):
        await soon(polling)
    assert await centre.work("f0", revision=2) == Work("over"), "its subscriptions are still open"
    await asyncio.sleep(1)
    assert not stopping.done()
    assert len(centre.fetchers()) == 2
    for name in ("f0", "f1"):
        assert await centre.work(name) == Work("over")
    await soon(stopping)
    assert centre.fetchers() == []
    assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint(
        {"watching the shards", "watching the fetchers"}
    )


@scenario()
async def test_stopping_waits_three_seconds_at_most(centre: Centre) -> None:
    await centre.working("f0")
    began = LoopClock().monotonic()
    await centre.cluster.stop()
    assert LoopClock().monotonic() == began + 3


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


@scenario(shards=1)
async def test_what_is_reported_is_what_polls_are_answered_with(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    work = await centre.working("f0")
    polling = asyncio.create_task(centre.poll(ONE, 50.0))
    await asyncio.sleep(1)
    reply = await centre.report("f0", news(FIRST, event(20, 2), event(30), start="TRIM_HORIZON", behind=700, quiet=0.0))
    assert reply == ReportReply(known=True, revision=work.revision, pause=1 / 200)
    told = await soon(polling)
    assert told[FIRST] == ShardProgress(FIRST, Position.after(30), 3, 300, 700, 30, 0.0, told[FIRST].data)
    assert centre.buffers.millis_behind(FIRST) == 700
    assert centre.buffers.buffered(FIRST, TRIM_HORIZON) is not None
    assert centre.buffers.millis_behind(SECOND) is None


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


@scenario(shards=1)
async def test_an_idle_shard_goes_on_with_each_report_and_wakes_no_poll(centre: Centre) -> None:
    """If the planner's picture of it froze, no offset would move: retention would overtake the checkpoint."""
    offset = ONE
    centre.cluster.expect(offset)
    work = await centre.working("f0")
    for number in range(1, 6):
        await centre.work("f0", work.revision)
        polling = asyncio.create_task(centre.poll(offset, 5.0))
        await asyncio.sleep(1)
        start = "TRIM_HORIZON" if number == 1 else None
        await centre.report("f0", news(FIRST, event(100 * number, 0), start=start, behind=0, quiet=float(number)))
        await asyncio.sleep(1)
        assert not polling.done()
        assert await polling == {}, "it is not looked at meanwhile"
        told = (await centre.poll(offset))[FIRST]
        assert (told.through, told.records, told.quiet) == (Position.after(100 * number), 0, number + 4.0)
        offset = Offset({FIRST: told.through})
        centre.cluster.commit(offset)


@scenario(shards=1)
async def test_news_of_a_shard_that_is_quiet_counts_from_the_report(centre: Centre) -> None:
    assert centre.buffers.quiet(FIRST) == 0.0
    centre.cluster.expect(ONE)
    await centre.working("f0")
    await centre.report("f0", news(FIRST, event(20, 0), start="TRIM_HORIZON", quiet=2.0))
    await asyncio.sleep(3)
    assert centre.buffers.quiet(FIRST) == 5.0


@scenario()
async def test_who_is_not_known_learns_it_with_its_report(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    assert await centre.report("f0", news(FIRST, event(20), start="TRIM_HORIZON")) == ReportReply(known=False)
    assert centre.cluster.statuses() == []


@scenario()
async def test_a_report_that_is_missing_makes_the_fetcher_begin_anew(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    work = await centre.working("f0")
    await centre.report("f0", news(FIRST, event(20), start="TRIM_HORIZON"))
    missing = await centre.cluster.assignments.report(Report("f0", 3, [news(FIRST, event(40))]))
    assert missing == ReportReply(known=True, again=True, revision=work.revision)
    assert [each.fetched for each in centre.cluster.statuses()] == ["AFTER:20"], "a gap would hide records"
    # It tells everything anew: what it does not tell of, it does not have.
    reply = await centre.report("f0", news(SECOND, event(50), start="TRIM_HORIZON"), anew=True)
    assert not reply.again
    assert [(each.key, each.fetched) for each in centre.cluster.statuses()] == [(SECOND, "AFTER:50")]


@scenario()
async def test_who_begins_anew_takes_nothing_from_the_others(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    first, second = await _one_shard_each(centre)
    await centre.report("f0", news(first, event(20), start="TRIM_HORIZON"))
    await centre.report("f1", news(second, event(20), start="TRIM_HORIZON"))
    await centre.report("f0", anew=True)
    assert [each.key for each in centre.cluster.statuses()] == [second]


async def _one_shard_each(centre: Centre) -> tuple[ShardKey, ShardKey]:
    """Two fetchers; returns the shard of each."""
    first = await centre.working("f0")
    await centre.working("f1")
    told = await centre.work("f0", first.revision, 2)
    await centre.work("f0", told.revision, told.number)
    owners = {centre.owner(key): key for key in (FIRST, SECOND)}
    await centre.work("f1", 1, 2)
    return owners[address(0)], owners[address(1)]


@scenario()
async def test_a_report_without_the_beginning_of_a_shard_is_asked_for_again(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await centre.working("f0")
    reply = await centre.report("f0", news(FIRST, event(20)), news(SECOND, event(30), start="TRIM_HORIZON"))
    assert reply.again
    assert [each.key for each in centre.cluster.statuses()] == [SECOND]


@scenario()
async def test_late_reports_about_a_shard_that_has_moved_are_refused(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    first = await centre.working("f0")
    await centre.report("f0", *(news(key, event(20), start="TRIM_HORIZON") for key in (FIRST, SECOND)))
    await centre.working("f1")
    told = await centre.work("f0", first.revision, 2)
    assert told.shards is not None
    (kept,) = [shard.key for shard in told.shards]
    (moved,) = {FIRST, SECOND} - {kept}
    assert [each.key for each in centre.cluster.statuses()] == [kept], "its buffer is given up"
    for start in ("TRIM_HORIZON", None):
        reply = await centre.report("f0", news(moved, event(90), start=start), news(kept, event(30)))
        assert not reply.again, "who has it now tells of it"
        assert [(each.key, each.fetched) for each in centre.cluster.statuses()] == [(kept, "AFTER:30")]
    await centre.work("f0", told.revision, told.number)
    await centre.report("f1", news(moved, event(40), start="TRIM_HORIZON"))
    await centre.report("f0", news(moved, event(90), start="TRIM_HORIZON"))
    status = {each.key: each for each in centre.cluster.statuses()}[moved]
    assert (status.fetched, status.fetcher) == ("AFTER:40", "1 on host1")


@scenario(shards=1)
async def test_reports_about_a_shard_that_the_query_has_left_are_refused(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    await centre.working("f0")
    await centre.report("f0", news(FIRST, event(20), start="TRIM_HORIZON"))
    centre.cluster.commit(Offset({FIRST: SHARD_END}))
    await centre.report("f0", news(FIRST, event(90), start="TRIM_HORIZON"))
    assert centre.cluster.statuses() == []


@scenario(shards=1)
async def test_a_buffer_that_begins_where_the_query_does_covers_every_number_behind_it(centre: Centre) -> None:
    begin = Position.at_timestamp(1_700_000_000_000)
    centre.cluster.expect(Offset({FIRST: begin}))
    await centre.working("f0")
    await centre.report("f0", news(FIRST, event(90), start=str(begin)))
    assert centre.buffers.buffered(FIRST, Position.after(20)) is not None, "whatever number Spark's log has"
    centre.cluster.commit(Offset({FIRST: Position.after(90)}))
    await centre.report("f0", news(FIRST, event(190), start="AT_TIMESTAMP:1700000060000"))
    assert centre.buffers.buffered(FIRST, Position.after(20)) is None, "it may lie before this buffer"


@scenario(shards=1)
async def test_of_several_queries_none_is_taken_for_the_one_whose_begin_the_buffers_cover(centre: Centre) -> None:
    begin = Position.at_timestamp(1_700_000_000_000)
    centre.cluster.expect(Offset({FIRST: begin}))
    await centre.working("f0")
    await centre.report("f0", news(FIRST, event(90), start=str(begin)))
    assert centre.buffers.buffered(FIRST, Position.after(20)) is not None
    centre.cluster.join("later")
    assert centre.buffers.buffered(FIRST, Position.after(20)) is None, "it may lie before the begin of the first one"
    await centre.report("f0", news(FIRST, event(90), start=str(begin)), anew=True)
    assert centre.buffers.buffered(FIRST, Position.after(20)) is None


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


@scenario()
async def test_what_was_dropped_is_not_taken_for_buffered_because_the_query_began_before_it(centre: Centre) -> None:
    begin = Position.at_timestamp(1_700_000_000_000)
    centre.cluster.expect(Offset({FIRST: begin}))
    await centre.working("f0")
    await centre.report("f0", news(FIRST, event(90), event(95), start=str(begin)))
    assert centre.buffers.buffered(FIRST, Position.after(20)) is not None
    centre.cluster.commit({FIRST: Position.after(90)})
    assert centre.buffers.buffered(FIRST, Position.after(90)) is not None
    assert centre.buffers.buffered(FIRST, Position.after(20)) is None


@scenario()
async def test_whose_buffers_are_nearly_full_wants_room(centre: Centre) -> None:
    assert not centre.cluster.wants_room(1.0)
    centre.cluster.expect(BOTH)
    first, second = await _one_shard_each(centre)
    most = event(20, size=BUDGET // 2)
    await centre.report("f0", news(first, most, start="TRIM_HORIZON"))
    await centre.report("f1", news(second, most, start="TRIM_HORIZON"))
    assert not centre.cluster.wants_room(1.0), "each of them has room"
    centre.cluster.assignments.dropped("f1")
    await centre.report("f0", news(second, most, start="TRIM_HORIZON"))
    assert centre.cluster.wants_room(1.0), "what it has buffered of all its shards counts"
    centre.cluster.commit(Offset({first: Position.after(20), second: TRIM_HORIZON}))
    assert not centre.cluster.wants_room(1.0)


@scenario(shards=1)
async def test_nothing_is_buffered_of_a_shard_behind_a_position_that_its_buffer_does_not_reach_back_to(
    centre: Centre,
) -> None:
    centre.cluster.expect(ONE)
    await centre.working("f0")
    assert centre.buffers.buffered(FIRST, Position.after(50)) is None
    await centre.report("f0", news(FIRST, event(90), start="AFTER:50"))
    assert centre.buffers.buffered(FIRST, Position.after(50)) is not None
    assert centre.buffers.buffered(FIRST, Position.after(40)) is None
    assert centre.cluster.last_record(ShardRange(FIRST, Position.after(50), Position.after(90))) == 90
    assert centre.cluster.last_record(ShardRange(FIRST, Position.after(40), Position.after(90))) is None
    assert centre.cluster.last_record(ShardRange(SECOND, Position.after(50), Position.after(90))) is None


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


@scenario()
async def test_what_a_fetcher_fails_of_ends_the_query_with_its_host_and_the_first_stays(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await centre.working("f0")
    await centre.working("f1")
    polling = asyncio.create_task(centre.poll(BOTH, 50.0))
    asking = asyncio.create_task(centre.where(ShardKey("orders", "nobody's"), wait=50.0))
    await asyncio.sleep(0.25)
    await centre.report("f1", failure=pack_error(DataLossError("a shard is gone")))
    await centre.report("f0", failure=pack_error(FetcherError("another thing")))
    for task in (polling, asking):
        with pytest.raises(DataLossError, match=r"^a shard is gone \(the fetcher on host host1 says so\)$"):
            await soon(task)
    for call in (centre.poll(BOTH), centre.commit(BOTH), centre.where(FIRST)):
        with pytest.raises(DataLossError, match="a shard is gone"):
            await call


# -- commits


@scenario(shards=1)
async def test_a_commit_drops_what_is_done_and_tells_the_last_records(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    await centre.working("f0")
    await centre.report("f0", news(FIRST, event(20), event(30), start="TRIM_HORIZON"))
    assert centre.cluster.commit(Offset({FIRST: Position.after(20)})) == {FIRST: LastRecord(20)}
    (status,) = centre.cluster.statuses()
    assert (status.buffered, status.fetched) == (100, "AFTER:30")
    assert centre.cluster.commit(Offset({FIRST: Position.after(20)})) == {}, "nothing has moved"
    assert centre.cluster.commit(Offset({FIRST: Position.after(25)})) == {}, "the last record there is not known"


@scenario(shards=1)
async def test_a_commit_never_takes_a_shard_back(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    await centre.working("f0")
    centre.cluster.commit(Offset({FIRST: Position.after(30)}))
    centre.cluster.commit(Offset({FIRST: Position.after(20)}))
    centre.cluster.assignments.dropped("f0")
    work = await centre.work("f1")
    assert work.shards is not None
    assert [shard.start for shard in work.shards] == [Position.after(30)]


@scenario(shards=1)
async def test_a_shard_that_is_done_is_given_to_nobody_any_more(centre: Centre) -> None:
    centre.cluster.expect(ONE)
    work = await centre.working("f0")
    await centre.report("f0", news(FIRST, event(20), start="TRIM_HORIZON"))
    waiting = asyncio.create_task(centre.work("f0", work.revision, 2, wait=5.0))
    await asyncio.sleep(0)
    assert centre.cluster.commit(Offset({FIRST: SHARD_END})) == {}
    assert centre.cluster.statuses() == []
    assert (await soon(waiting)).done == []
    centre.cluster.assignments.dropped("f0")
    assert (await centre.work("f1")).shards == []
    centre.cluster.expect(Offset({FIRST: SHARD_END}))
    assert (await centre.work("f2")).shards == []


@scenario()
async def test_a_shard_that_left_the_offset_is_done_and_one_of_a_later_offset_is_not(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    work = await centre.working("f0")
    await centre.report("f0", *(news(key, event(20), start="TRIM_HORIZON") for key in (FIRST, SECOND)))
    await centre.poll(BOTH)
    centre.cluster.commit(ONE)
    assert len(centre.cluster.statuses()) == 2, "a later offset than the one that is committed has it"
    await centre.poll(ONE)
    waiting = asyncio.create_task(centre.work("f0", work.revision, 2, wait=5.0))
    await asyncio.sleep(0)
    centre.cluster.commit(ONE)
    assert [each.key for each in centre.cluster.statuses()] == [FIRST]
    await soon(waiting)
    centre.cluster.assignments.dropped("f0")
    told = await centre.work("f1")
    assert told.shards is not None
    assert [shard.key for shard in told.shards] == [FIRST]


@pytest.mark.parametrize("left", [True, False])
def test_a_shard_that_comes_again_begins_where_it_comes_again(left: bool) -> None:
    """After its first time, a buffer that begins at the same time is not known to cover any number."""

    @scenario(shards=1)
    async def test(centre: Centre) -> None:
        begin = Position.at_timestamp(1_700_000_000_000)
        centre.cluster.expect(Offset({FIRST: begin}))
        await centre.working("f0")
        centre.cluster.commit(Offset({} if left else {FIRST: SHARD_END}))
        centre.cluster.expect(Offset({FIRST: Position.after(50)}))
        await centre.working("f0")
        await centre.report("f0", news(FIRST, event(90), start=str(begin)))
        assert centre.buffers.buffered(FIRST, Position.after(50)) is None

    test()


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
async def test_a_shard_is_begun_anew_once_however_often_it_is_asked_for_until_its_fetcher_tells_of_it(
    centre: Centre,
) -> None:
    centre.cluster.expect(Offset({FIRST: Position.after(50)}))
    work = await centre.working("f0")
    await centre.report("f0", news(FIRST, event(90), start="AFTER:50"))
    centre.cluster.begin_at(FIRST, Position.after(20))
    assert centre.owner(FIRST) is None
    assert centre.cluster.found(FIRST) is None, "what was told of it is gone"
    closing = await centre.work("f0", work.revision, 2)
    assert closing.shards == []
    again = await centre.work("f0", closing.revision, closing.number)
    assert centre.owner(FIRST) == address(0)
    assert again.shards is not None
    assert [(shard.key, shard.start) for shard in again.shards] == [(FIRST, Position.after(20))]
    assert centre.cluster.found(FIRST) is None
    centre.cluster.begin_at(FIRST, Position.after(20))
    assert centre.owner(FIRST) == address(0), "it is on its way"
    await centre.work("f0", again.revision, again.number)
    await centre.report("f0", news(FIRST, event(40), start="AFTER:20"))
    assert centre.cluster.found(FIRST) is not None
    centre.cluster.begin_at(FIRST, Position.after(10))
    assert centre.owner(FIRST) is None


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


@scenario()
async def test_shards_that_are_let_go_of_are_closed_before_anybody_goes_on(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    work = await centre.working("f0")
    waiting = asyncio.create_task(centre.work("f0", work.revision, 2, wait=5.0))
    letting = asyncio.create_task(centre.cluster.let_go([FIRST]))
    told = await soon(waiting)
    assert [shard.key for shard in told.shards] == [SECOND]
    await asyncio.sleep(3)
    assert not letting.done(), "its subscription may be open"
    await centre.work("f0", told.revision, told.number)
    await soon(letting)
    assert centre.owner(FIRST) is None
    assert (await centre.work("f0", told.revision, told.number + 1)).shards is None, "nobody has asked for it"
    centre.cluster.expect(BOTH)
    assert centre.owner(FIRST) == address(0)


@scenario(timeout=100.0)
async def test_a_fetcher_that_does_not_answer_holds_up_who_lets_go_for_ten_seconds(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await centre.working("f0")
    began = LoopClock().monotonic()
    await centre.cluster.let_go([FIRST])
    assert LoopClock().monotonic() == began + 10


@scenario()
async def test_who_lets_go_of_what_nobody_reads_waits_for_nothing(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await soon(asyncio.create_task(centre.cluster.let_go([FIRST, SECOND])))
    assert (await centre.work("f0")).shards == []


@scenario()
async def test_what_was_given_up_before_a_shard_was_told_of_is_not_offered_to_a_query_further_behind(
    centre: Centre,
) -> None:
    centre.cluster.join("later")
    centre.cluster.expect(ONE)
    await centre.working("f0")
    centre.cluster.commit(Offset({FIRST: Position.after(20)}))
    await centre.report("f0", news(FIRST, event(20), event(30), start="TRIM_HORIZON"))
    told = centre.cluster.found(FIRST)
    assert told is not None
    assert not told.covers(TRIM_HORIZON)
    assert told.covers(Position.after(20))


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


@scenario()
async def test_tasks_are_told_who_reads_their_shards_once_somebody_does(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    assert await centre.where(FIRST) == WhereReply([None], 0)
    asking = asyncio.create_task(centre.where(FIRST, SECOND, wait=50.0))
    await asyncio.sleep(1.3)
    await centre.work("f0")
    assert await soon(asking) == WhereReply([address(0), address(0)], 1)
    began = LoopClock().monotonic()
    unknown = ShardKey("orders", "shardId-000000000009")
    assert await centre.where(FIRST, unknown, wait=2.0) == WhereReply([address(0), None], 1)
    assert LoopClock().monotonic() == began + 2
    assert (centre.cluster.fetcher_of(FIRST), centre.cluster.fetcher_of(unknown)) == ("0 on host0", None)


@scenario(shards=1)
async def test_a_shard_goes_back_for_a_task_of_a_query_that_others_have_left(centre: Centre) -> None:
    """Its fetcher does so for nobody any more: the others may have read it further."""
    await centre.cluster.join("other").leave()
    centre.cluster.expect(Offset({FIRST: Position.after(50)}))
    work = await centre.working("f0")
    await centre.report("f0", news(FIRST, event(90), start="AFTER:50"))

    async def ask(after: int) -> WhereReply:
        wanted = ShardRange(FIRST, Position.after(after), Position.after(90))
        return await centre.cluster.where(WhereRequest.of([wanted], 0.0))

    assert (await ask(60)).fetchers == [address(0)]
    assert centre.owner(FIRST) == address(0)
    await ask(20)
    assert centre.owner(FIRST) is None
    closing = await centre.work("f0", work.revision, 2)
    await centre.work("f0", closing.revision, closing.number)
    assert (await ask(20)).fetchers == [address(0)]
    assert centre.cluster.assignments.reached == {FIRST: Position.after(20)}


@scenario()
async def test_tasks_that_wait_learn_at_once_that_a_shard_is_read_again(centre: Centre) -> None:
    await centre.working("f0")
    centre.cluster.end("orders")
    centre.cluster.expect(BOTH)
    asking = asyncio.create_task(centre.where(FIRST, wait=50.0))
    await asyncio.sleep(1.3)
    centre.cluster.begin("orders")
    assert (await soon(asking)).fetchers == [address(0)]
    work = await centre.working("f0")
    await centre.work("f1")
    told = await centre.work("f0", work.revision, work.number)
    (moved,) = [key for key in (FIRST, SECOND) if centre.owner(key) is None]
    asking = asyncio.create_task(centre.where(moved, wait=50.0))
    await asyncio.sleep(1.3)
    await centre.work("f0", told.revision, told.number)
    assert (await soon(asking)).fetchers == [address(1)], "the one that had it has closed it"


@scenario()
async def test_tasks_learn_at_once_that_the_shards_of_a_dead_fetcher_are_read_by_another(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    first, second = await _one_shard_each(centre)
    assert centre.owner(first) == address(0)
    asking = asyncio.create_task(centre.where(first, ShardKey("orders", "later"), wait=0.6))
    centre.cluster.assignments.dropped("f0")
    assert centre.owner(first) == address(1), "it is shared out at once"
    assert centre.owner(second) == address(1)
    assert (await asking).fetchers[0] == address(1)
    centre.cluster.assignments.dropped("nobody")
    assert centre.fetchers() == [("host1", 2)]


@scenario()
async def test_what_a_dead_fetcher_had_buffered_is_gone_and_what_the_others_have_is_not(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    first, second = await _one_shard_each(centre)
    for name, key in (("f0", first), ("f1", second)):
        await centre.report(name, news(key, event(20), start="TRIM_HORIZON"))
    assert list(centre.buffers.budgets([first, second])) == [([first], BUDGET), ([second], BUDGET)]
    centre.cluster.assignments.dropped("f0")
    assert [each.key for each in centre.cluster.statuses()] == [second]
    assert list(centre.buffers.budgets([first, second])) == [([second], BUDGET)], "a later poll plans the other"
    assert await centre.cluster.assignments.report(Report("f0", 2, [])) == ReportReply(known=False)


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


@scenario()
async def test_one_that_is_late_and_whose_process_has_ended_is_given_up_at_once(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await centre.working("f0")
    centre.gone.add(address(0))
    await asyncio.sleep(1.2)
    assert centre.fetchers() == [("host0", 2)], "it is not late"
    await asyncio.sleep(1.0)
    assert centre.fetchers() == []


@scenario()
async def test_one_that_is_silent_counts_as_dead_once_it_has_stopped_reading(centre: Centre) -> None:
    centre.cluster.expect(BOTH)
    await centre.working("f0")
    await asyncio.sleep(TIMEOUT - 0.6)
    assert centre.fetchers() == [("host0", 2)]
    await centre.working("f1")
    await asyncio.sleep(1.2)
    assert centre.fetchers() == [("host1", 2)], "its shards are shared out"


@scenario()
async def test_no_fetcher_for_long_is_an_error_counted_from_the_last_one(centre: Centre) -> None:
    began = LoopClock().monotonic()
    await asyncio.sleep(20)
    await centre.working("f0")
    await asyncio.sleep(5)
    centre.cluster.assignments.dropped("f0")
    gone = LoopClock().monotonic()
    await asyncio.sleep(25)
    polling = asyncio.create_task(centre.poll(BOTH, 500.0))
    with pytest.raises(FetcherError, match=r"no fetcher has come up for 60 s\. Spark has no cores\. Fetchers run as"):
        await polling
    assert LoopClock().monotonic() == pytest.approx(gone + 60, abs=0.51)
    assert began < gone


@scenario()
async def test_nobody_is_missed_while_somebody_is_there(centre: Centre) -> None:
    for _ in range(200):
        work = await centre.work("f0")
        await centre.work("f0", work.revision, work.number)
        await asyncio.sleep(0.5)
    assert centre.coordinator.failure.error is None


def test_that_a_fetcher_is_gone_is_said_unless_the_run_ends(caplog: pytest.LogCaptureFixture) -> None:
    @scenario()
    async def test(centre: Centre) -> None:
        centre.cluster.expect(BOTH)
        await centre.working("f0")
        centre.cluster.assignments.dropped("f0")
        await centre.working("f1")
        stopping = asyncio.create_task(centre.cluster.stop())
        await asyncio.sleep(0)
        await centre.work("f1")
        await stopping

    with caplog.at_level(logging.WARNING):
        test()
    assert [message for message in caplog.messages if "is gone" in message] == [
        "fetcher 0 on host0 is gone; it read 2 shards"
    ]


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
