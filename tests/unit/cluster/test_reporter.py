"""What a fetcher of another process tells the planner."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kinesis_efo.cluster import reporter as reporting
from kinesis_efo.cluster.reporter import Reporter
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.events import ChildShard, Event, read_head
from tests.support.virtual_time import run


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
