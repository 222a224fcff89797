"""What a fetcher of another process tells the planner."""

from collections.abc import Iterator
from typing import Any

from kinesis_efo.cluster.reporter import Reporter
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.fetcher.work import RowKey, ShardNews
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from tests.support.fetched import event_with


class Feed:
    """A feed whose buffer a test fills."""

    def __init__(self, number: int, start: Position = TRIM_HORIZON) -> None:
        self.key = ShardKey("orders", f"shardId-{number:012d}")
        self.row = RowKey(None, self.key)
        self.buffer: ShardBuffer | None = ShardBuffer(self.key, start, Budget(1 << 20), lambda: None)

    def news(self, _buffer: ShardBuffer) -> ShardNews:
        return ShardNews(self.key, 1, behind=700, unseen=2.7)

    async def add(self, end: int, *numbers: int) -> None:
        assert self.buffer is not None
        await self.buffer.admit(event_with(end, *numbers), 0.0)


class Fetcher:
    """A fetcher with such feeds."""

    def __init__(self, *feeds: Feed) -> None:
        self.feeds = list(feeds)

    def __iter__(self) -> Iterator[Feed]:
        return iter(self.feeds)

    def subscription(self, key: ShardKey) -> Subscription:
        return Subscription("open", int(key.shard[-1]) + 1, 0, 0)


def reporter(*feeds: Feed) -> Reporter:
    fetcher: Any = Fetcher(*feeds)
    return Reporter(fetcher)


async def test_closed_shard_is_reported_only_after_its_return() -> None:
    feed = Feed(0)
    made = reporter(feed)
    await feed.add(20, 20)
    made.touch([feed.row])
    made.collect()
    buffer, feed.buffer = feed.buffer, None
    made.touch([feed.row])
    assert made.collect() == []
    feed.buffer = buffer
    made.touch([feed.row])
    (news,) = made.collect()
    assert (news.start, [event.through for event in news.events]) == (TRIM_HORIZON, [Position.after(20)])
    made.touch([RowKey(None, ShardKey("orders", "shardId-000000000007"))])
    assert made.collect() == []


async def test_three_events_fill_a_report_of_three() -> None:
    feeds = [Feed(number) for number in range(2)]
    made = reporter(*feeds)
    for feed in feeds:
        for end in (20, 30, 40):
            await feed.add(end, end)
    made.touch(feed.row for feed in feeds)
    assert len(made.collect(most_entries=3)) == 1
    assert len(made.collect(most_entries=3)) == 1


async def test_run_begins_again_behind_dropped_unreported_events() -> None:
    feed = Feed(0, Position.after(0))
    buffer, made = feed.buffer, reporter(feed)
    assert buffer is not None
    for end in range(1, 1021):
        await feed.add(end, end)
    made.touch([feed.row])
    made.collect()
    buffer.drop_before(Position.after(1000), {})
    for end in range(1021, 1041):
        await feed.add(end, end)
    buffer.drop_unread()
    await feed.add(1050)
    made.touch([feed.row])
    (news,) = made.collect()
    assert news.start == Position.after(1040)
    assert [event.through for event in news.events] == [Position.after(1050)]
