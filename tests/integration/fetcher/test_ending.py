"""Where a query ends that reads what is there: at the tips, or where `endingPosition` says."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.positions import Offset, ShardKey
from kinesis_efo_local import LocalAws, Settings
from tests.integration.fetcher.conftest import QUICK
from tests.support.fetching import Reading, reading
from tests.support.world import World, make_world, wait_until

MakeWorld = Callable[..., World]


class Past:
    """A clock that is set back, for one Kinesis: shards, numbers and records are of that time."""

    ago = 1000.0
    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        return time.time() - self.ago


@pytest.fixture
def past() -> Past:
    return Past()


@pytest.fixture
def world(past: Past, tmp_path: Path) -> Iterator[MakeWorld]:
    with LocalAws(settings=Settings(**QUICK, signature_seconds=math.inf), clock=past) as aws:
        yield lambda streams=("orders",): make_world(aws, tmp_path, streams)


MODES = ({"readMode": "efo"}, {"readMode": "polling", "pollingInterval": "200ms"})
NEXT_CENTURY = 4_102_444_800


def put(w: World, past: Past, numbers: range, ago: float = 0.0, stream: str = "orders") -> None:
    """Put numbered records that arrived so many seconds ago; never before earlier ones."""
    past.ago = ago
    w.put(((f"key{number}", b"%d" % number) for number in numbers), stream)


def at(seconds_ago: float) -> str:
    return f"AT_TIMESTAMP:{round((time.time() - seconds_ago) * 1000)}"


def read_to(r: Reading, ends: Offset) -> list[int]:
    """What lies between the query's offset and the ends, of its shards and those that follow them."""
    return sorted(int(row.data) for wanted in r.offset.ranges_to(ends) for row in r.read(wanted))


def ends_of(r: Reading) -> Offset:
    found: Offset = wait_until(r.tips, 30)
    return found


@pytest.mark.parametrize("mode", MODES, ids=["efo", "polling"])
def test_time_ends_before_its_first_record(world: MakeWorld, past: Past, mode: Mapping[str, str]) -> None:
    w = world({"orders": 3})
    put(w, past, range(40), ago=900)
    put(w, past, range(40, 80), ago=120)
    put(w, past, range(80, 100))
    with reading(w, **mode, endingPosition=at(60)) as r:
        ends = ends_of(r)
        assert read_to(r, ends) == list(range(80))
        r.offset = ends
        r.commit()
    with reading(w, at=ends, **mode, endingPosition=at(600)) as r:
        assert read_to(r, ends_of(r)) == [], "the end lies before the place where the query is"
        assert ends_of(r).keys() == ends.keys()
    with reading(w, at=ends, **mode) as r:
        assert sorted(int(row.data) for row in r.until(20)) == list(range(80, 100))


@pytest.mark.parametrize("mode", MODES, ids=["efo", "polling"])
def test_a_time_before_everything_ends_where_the_query_begins(
    world: MakeWorld, past: Past, mode: Mapping[str, str]
) -> None:
    w = world()
    put(w, past, range(10), ago=100)
    with reading(w, **mode, endingPosition=at(3000)) as r:
        assert read_to(r, ends_of(r)) == []


@pytest.mark.parametrize("mode", MODES, ids=["efo", "polling"])
def test_children_are_read_if_parents_end_before_the_time(
    world: MakeWorld, past: Past, mode: Mapping[str, str]
) -> None:
    w = world({"orders": 2})
    put(w, past, range(40), ago=900)
    w.kinesis.split_shard(
        StreamName=w.streams["orders"], ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    w.wait_active()
    put(w, past, range(40, 80), ago=300)
    put(w, past, range(80, 120))
    with reading(w, **mode, endingPosition=at(100)) as r:
        ends = ends_of(r)
        assert len(ends) == 4
        assert read_to(r, ends) == list(range(80))
    with reading(w, **mode, endingPosition=at(600)) as r:
        ends = ends_of(r)
        assert read_to(r, ends) == list(range(40))


def test_streams_and_shards_may_have_separate_ends(world: MakeWorld, past: Past) -> None:
    w = world({"orders": 2, "clicks": 1})
    put(w, past, range(40), ago=900)
    put(w, past, range(40, 80))
    put(w, past, range(100, 110), stream="clicks")
    rows = read_all(w)
    shard = "shardId-000000000001"
    of_shard = [row for row in rows if (row.stream, row.shard) == ("orders", shard)]
    tenth = of_shard[9].sequence
    end = {"orders": {shard: f"AFTER:{tenth}", "*": at(100)}, "*": "LATEST"}
    with reading(w, endingPosition=json.dumps(end)) as r:
        ends = ends_of(r)
        expected = {int(row.data) for row in of_shard[:10]}
        expected |= {int(row.data) for row in rows if row.shard != shard and int(row.data) < 40}
        assert read_to(r, ends) == sorted([*expected, *range(100, 110)])
    beyond = {"orders": {shard: f"AFTER:{10**70}"}}
    with reading(w, endingPosition=json.dumps(beyond)) as r:
        ends = ends_of(r)
        assert read_to(r, ends) == [*range(80), *range(100, 110)]
        assert ends[ShardKey("orders", shard)].value < 10**70, "what comes later is not skipped"


def read_all(w: World) -> list[Any]:
    with reading(w) as r:
        return r.until(90)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("AT_TIMESTAMP:2999-01-01T00:00:00Z", "must not lie in the future: .* is 2999-01-01T00:00:00.000Z"),
        ('{"clicks": "LATEST"}', "names 'clicks', but the query reads 'orders'"),
        (
            '{"orders": {"shardId-000000000009": "AFTER:1"}}',
            "stream 'orders': .* names shard 'shardId-000000000009', which",
        ),
        (
            f'{{"orders": {{"shardId-000000000000": "AFTER:{2 << 184 | NEXT_CENTURY << 148 | NEXT_CENTURY << 36 | 2}"}}}}',
            "must not lie in the future: AFTER:.* of shard shardId-000000000000 is 2100-01-01",
        ),
        ('{"orders": {"shardId-000000000000": "SHARD_END"}}', "is still open: LATEST is its tip"),
    ],
)
def test_ends_that_cannot_be(world: MakeWorld, past: Past, end: str, message: str) -> None:
    past.ago = 0.0
    with reading(world(), endingPosition=end) as r, pytest.raises(ConfigurationError, match=message):
        wait_until(r.tips, 30)
