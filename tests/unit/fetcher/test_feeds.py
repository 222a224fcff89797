"""What the feeds of a fetcher know of a shard, whether it is read or not."""

from __future__ import annotations

from typing import Any

from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.feeds import Feeds
from kinesis_efo.positions import ShardKey, ShardRange
from tests.support.fetched import TRIM_HORIZON, after, buffer, fill, idle, key
from tests.unit.fetcher.test_buffer import numbered_event

READ, UNREAD, FORBIDDEN = key(0), key(1), key(2)


class Feed:
    """A feed with a buffer from 10 on, with the records 14 and 18; or without one."""

    def __init__(self, shard: ShardKey) -> None:
        self.buffer: Any = None
        if shard == READ:
            self.buffer = buffer(after(10))
            fill(self.buffer, numbered_event(20, 14, 18), idle(30))


def feeds() -> Feeds:
    made: Any = Feed
    return Feeds(made, lambda shard: shard != FORBIDDEN, Budget(1 << 20))


def test_a_shard_is_covered_from_where_it_is_read_and_everywhere_if_it_is_not_read_yet() -> None:
    made = feeds()
    assert [made.covers(READ, after(number)) for number in (9, 10, 11)] == [False, True, True]
    assert made.covers(UNREAD, after(9)) and made.covers(FORBIDDEN, TRIM_HORIZON)
    assert made.found(FORBIDDEN) is None
    assert made.found(UNREAD) is None


def test_the_last_record_of_a_range_is_known_if_its_start_is_buffered() -> None:
    made = feeds()
    assert made.last_record(ShardRange(READ, after(10), after(16))) == 14
    assert made.last_record(ShardRange(READ, after(10), after(30))) == 18
    assert made.last_record(ShardRange(READ, after(18), after(30))) is None, "it has none"
    assert made.last_record(ShardRange(READ, after(9), after(30))) is None
    assert made.last_record(ShardRange(UNREAD, after(10), after(30))) is None
    assert made.last_record(ShardRange(FORBIDDEN, after(10), after(30))) is None
