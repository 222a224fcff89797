"""What a fetcher of another process tells the planner."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.cluster import reporter as reporting
from kinesis_efo.cluster.reporter import Reporter
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import ShardNews
from kinesis_efo.options import Bounds
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position, ShardKey
from kinesis_efo.records.events import ChildShard, Event, EventHead, read_head
from tests.support.model_stream import ModelStream
from tests.support.virtual_time import run
from tests.unit.fetcher.test_fetcher import Query, horizon, scenario


def test_the_last_record_in_front_of_an_end_is_looked_for_until_it_is_seen_and_told_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes a search through an event of up to 2 MB, and each event that comes later is told of, too."""
    looks = []
    looked = ShardBuffer.last_up_to

    def look(self: ShardBuffer, *given: Position) -> int | None:
        looks.append(looked(self, *given))
        return looks[-1]

    @scenario
    async def test() -> None:
        stream = ModelStream(shards=1, event_records=(10,))
        stream.put(0, *[30] * 30)
        last = stream[0].records[4][0]
        end = Position.after(last)
        async with Query(stream) as query:
            (key,) = begin = horizon(stream)
            while not (await query.planner.poll(begin, 1 << 30, 1 << 30, 1.0)).shards[0].records:
                pass
            monkeypatch.setattr(ShardBuffer, "last_up_to", look)
            reporter = Reporter(query.fetcher, Streams(query._streams), Bounds(everywhere=end))
            for _ in range(5):
                reporter.touch([key])
                (news,) = reporter.collect()
                assert news.before_end == (end, last)
            assert looks == [last]
            reporter.forget()
            (news,) = reporter.collect()
            assert news.before_end == (end, last), "another planner knows nothing of it"

    test()


class Feed:
    """A feed whose buffer a test fills."""

    def __init__(self, number: int, start: Position = TRIM_HORIZON) -> None:
        self.key = ShardKey("orders", f"shardId-{number:012d}")
        self.buffer: ShardBuffer | None = ShardBuffer(self.key, start, Budget(1 << 20), lambda: None)
        self.millis_behind: int | None = 700
        self.unseen: float | None = 2.7
        self.quiet = 0.0

    def read_until(self, position: Position) -> float | None:
        return 1_700_000_000.0 if self.buffer is not None and position == self.buffer.end else None

    async def add(self, end: int, *numbers: int) -> None:
        assert self.buffer is not None
        await self.buffer.admit(event(end, *numbers), 0.0)


class Fetcher:
    """A fetcher with such feeds."""

    def __init__(self, *feeds: Feed) -> None:
        self.feeds = list(feeds)

    def subscription(self, key: ShardKey) -> Subscription:
        return Subscription("open", int(key.shard[-1]) + 1, 0, 0)


def event(end: int, *numbers: int) -> Event:
    records = [{"SequenceNumber": str(number), "Data": ""} for number in numbers]
    payload = json.dumps(
        {
            "ContinuationSequenceNumber": str(end),
            "MillisBehindLatest": 0,
            "Records": records,
            "ChildShards": [],
        }
    ).encode()
    return Event(payload, read_head(payload))


def reporter(*feeds: Feed) -> Reporter:
    children = SimpleNamespace(
        children=lambda _shard: (ChildShard("shardId-000000000008", ("shardId-000000000000",), 1, 2),)
    )
    streams: Any = SimpleNamespace(stream=lambda _name: children)
    fetcher: Any = Fetcher(*feeds)
    return Reporter(fetcher, streams)


def told(news: list[ShardNews]) -> dict[str, list[str]]:
    return {each.key.shard[-1]: [str(event.through) for event in each.events] for each in news}


def test_a_report_tells_what_happened_since_the_last_one_in_the_shards_that_were_touched() -> None:
    async def main() -> None:
        first, second = Feed(0), Feed(1)
        made = reporter(first, second)
        await first.add(20, 18)
        await second.add(20, 20)
        made.touch([first.key])
        (news,) = made.collect()
        assert (news.key, news.start, news.behind, news.read_until) == (first.key, TRIM_HORIZON, 700, 1_700_000_000.0)
        assert news.unseen == 2.7
        assert [each[:5] for each in news.events] == [(Position.after(20), news.events[0].size, 1, LastRecord(18), ())]
        assert (news.children, news.quiet, news.lowest, news.before_end) == ([], 0.0, 18, None)
        assert news.subscription == Subscription("open", 1, 0, 0)
        assert made.collect() == []
        await first.add(30, 30)
        first.quiet = 3.0
        made.touch([first.key, second.key])
        news, other = sorted(made.collect(), key=lambda each: each.key.shard)
        assert (news.start, [str(event.through) for event in news.events]) == (None, ["AFTER:30"])
        assert news.quiet == 3.0
        assert (other.start, [str(event.through) for event in other.events]) == (TRIM_HORIZON, ["AFTER:20"])

    run(main())


def test_a_shard_that_is_idle_is_told_of_again_as_it_goes_on() -> None:
    async def main() -> None:
        feed = Feed(0)
        made = reporter(feed)
        for end in (20, 30, 40):
            await feed.add(end)
            made.touch([feed.key])
            assert told(made.collect()) == {"0": [f"AFTER:{end}"]}

    run(main())


def test_a_buffer_that_began_anew_is_told_from_its_beginning() -> None:
    async def main() -> None:
        feed = Feed(0)
        made = reporter(feed)
        await feed.add(20, 20)
        made.touch([feed.key])
        made.collect()
        feed.buffer = Feed(0, Position.after(10)).buffer
        await feed.add(20, 20)
        made.touch([feed.key])
        (news,) = made.collect()
        assert (news.start, [event.through for event in news.events]) == (Position.after(10), [Position.after(20)])

    run(main())


def test_nothing_is_told_of_a_shard_that_is_closed_and_all_of_it_if_it_comes_again() -> None:
    async def main() -> None:
        feed = Feed(0)
        made = reporter(feed)
        await feed.add(20, 20)
        made.touch([feed.key])
        made.collect()
        buffer, feed.buffer = feed.buffer, None
        made.touch([feed.key])
        assert made.collect() == []
        feed.buffer = buffer
        made.touch([feed.key])
        (news,) = made.collect()
        assert (news.start, [event.through for event in news.events]) == (TRIM_HORIZON, [Position.after(20)])
        made.touch([ShardKey("orders", "shardId-000000000007")])
        assert made.collect() == []

    run(main())


def test_whoever_forgets_tells_everything_of_all_shards() -> None:
    async def main() -> None:
        first, second = Feed(0), Feed(1)
        made = reporter(first, second)
        await first.add(20, 20)
        made.touch([first.key])
        made.collect()
        made.forget()
        assert {news.key.shard[-1]: news.start for news in made.collect()} == {"0": TRIM_HORIZON, "1": TRIM_HORIZON}

    run(main())


def test_what_is_too_much_for_a_report_follows_at_once_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "MOST_ENTRIES", 3)

    async def main() -> None:
        feeds = [Feed(number) for number in range(4)]
        made = reporter(*feeds)
        for feed in feeds:
            await feed.add(20, 20)
            await feed.add(30, 30)
        made.touch(feed.key for feed in feeds)
        made.wake()
        assert made.waits
        first = made.collect()
        assert len(first) == 2, "three events would do, the fourth comes along"
        assert made.waits
        second = made.collect()
        assert len(second) == 2
        assert not made.waits
        assert told([*first, *second]) == {str(number): ["AFTER:20", "AFTER:30"] for number in range(4)}
        assert made.collect() == []
        await feeds[0].add(40, 40)
        made.touch([feeds[0].key])
        made.collect()
        assert not made.waits

    run(main())


def test_three_events_fill_a_report_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "MOST_ENTRIES", 3)

    async def main() -> None:
        feeds = [Feed(number) for number in range(2)]
        made = reporter(*feeds)
        for feed in feeds:
            for end in (20, 30, 40):
                await feed.add(end, end)
        made.touch(feed.key for feed in feeds)
        assert len(made.collect()) == 1
        assert len(made.collect()) == 1

    run(main())


def test_the_children_of_a_shard_are_told_with_its_end() -> None:
    async def main() -> None:
        feed = Feed(0)
        made = reporter(feed)
        assert feed.buffer is not None
        await feed.buffer.admit(Event(b"{}", EventHead(continuation=None, millis_behind=0, records=0)), 0.0)
        made.touch([feed.key])
        (news,) = made.collect()
        assert [child.shard_id for child in news.children] == ["shardId-000000000008"]
        assert [event.through for event in news.events] == [SHARD_END]

    run(main())


@pytest.mark.parametrize(
    ("start", "lowest"),
    [(Position.at_timestamp(1_700_000_000_000), 18), (TRIM_HORIZON, 18), (Position.after(5), None)],
)
def test_the_lowest_number_is_told_of_a_buffer_that_starts_without_a_number(
    start: Position, lowest: int | None
) -> None:
    async def main() -> None:
        feed = Feed(0, start)
        made = reporter(feed)
        made.touch([feed.key])
        assert [news.lowest for news in made.collect()] == [None]
        await feed.add(20, 18)
        made.touch([feed.key])
        assert [news.lowest for news in made.collect()] == [lowest]

    run(main())


def test_a_report_is_worth_sending_once_somebody_says_so() -> None:
    async def main() -> None:
        made = reporter()
        waiting = asyncio.ensure_future(made.news.wait())
        await asyncio.sleep(0)
        made.touch([ShardKey("orders", "shardId-000000000000")])
        await asyncio.sleep(1)
        assert not waiting.done()
        assert not made.waits
        made.wake()
        assert made.waits
        await waiting
        made.collect()
        assert not made.waits

    run(main())
