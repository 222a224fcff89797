"""What a fetcher's counts become: per shard, per stream, and nothing that steps back when shards come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.kinesis.stats import SILENCE_SECONDS, State, SubscriptionStats
from kinesis_efo.leases.run import LeaseStats
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.metrics.catalog import Metric
from kinesis_efo.metrics.registry import Values, merge
from kinesis_efo.positions import TRIM_HORIZON, ShardKey

ABOUT = (("application", "lake"), ("environment", "dev"))


class World:
    """A fetcher of one stream as its collector sees it."""

    def __init__(self, shards: int = 100) -> None:
        self.now = 100.0
        self.stats: dict[str, SubscriptionStats] = {}
        self.budget = Budget(1000, now=lambda: self.now)
        self.feeds: list[ShardFeed] = []
        leases: Any = SimpleNamespace(wanted={"a", "b"}, held={"a"}, stats=LeaseStats(3, 2, 1))
        self.apart: dict[str, SubscriptionStats] = {}
        self.queries = (1, 0)
        apart = SimpleNamespace(stats=self.apart)
        streams: Any = {
            "orders": SimpleNamespace(
                subscriptions=SimpleNamespace(stats=self.stats), apart=apart, losses=SimpleNamespace(count=2)
            ),
            "polled": SimpleNamespace(
                subscriptions=SimpleNamespace(stats={}), apart=None, losses=SimpleNamespace(count=0)
            ),
        }
        self.collector = FetcherCollector(
            self, streams, leases, dict(ABOUT), shards, lambda: self.now, lambda: self.queries
        )

    def read(self, shard: str, **stats: Any) -> SubscriptionStats:
        """A shard that is read, with what it has counted."""
        self.stats[shard] = SubscriptionStats(State.STREAMING, **stats)
        feed: Any = SimpleNamespace(key=ShardKey("orders", shard), buffer=EventIndex(TRIM_HORIZON))
        self.feeds.append(feed)
        return self.stats[shard]

    def leave(self, shard: str) -> None:
        """A shard is not read any more."""
        self.feeds = [feed for feed in self.feeds if feed.key.shard != shard]

    def values(self) -> Values:
        return merge({}, self.collector())

    def value(self, metric: Metric, **attributes: str) -> float | None:
        names = ({"stream": "orders"} if "stream" in metric.attributes else {}) | attributes
        return self.values().get((metric, (*ABOUT, *names.items())))


def test_shards_are_told_apart_and_subscriptions_added_up() -> None:
    world = World()
    world.read("s0", records=3, opened=1, millis_behind=40, last_event=99.0)
    stats = world.read("s1", records=4, opened=2, millis_behind=10, last_event=98.0)
    stats.failures.update({"LimitExceededException": 2})
    assert (world.value(metrics.RECORDS, shard="s0"), world.value(metrics.RECORDS, shard="s1")) == (3, 4)
    assert (world.value(metrics.LAG, shard="s0"), world.value(metrics.SILENCE, shard="s1")) == (40, 2)
    assert (world.value(metrics.OPENED), world.value(metrics.OPEN)) == (3, 2)
    assert world.value(metrics.FAILED, error="LimitExceededException") == 2


def test_what_queries_read_apart_is_counted_by_itself() -> None:
    world = World()
    world.read("s0", bytes=7, events=1)
    assert (world.value(metrics.QUERIES), world.value(metrics.QUERIES_APART)) == (1, 0)
    assert (world.value(metrics.APART_BYTES), world.value(metrics.APART_CALLS)) == (0, 0)
    world.apart |= {shard: SubscriptionStats(bytes=500, events=3) for shard in ("s0", "s1")}
    world.queries = (3, 2)
    assert (world.value(metrics.QUERIES), world.value(metrics.QUERIES_APART)) == (3, 2)
    assert (world.value(metrics.APART_BYTES), world.value(metrics.APART_CALLS)) == (1000, 6)
    assert world.value(metrics.BYTES, shard="s0") == 7
    apart = [(metric, about) for metric, about in world.values() if metric in (metrics.APART_BYTES, metrics.QUERIES)]
    assert len(apart) == 2, "whatever shards and queries there are"


def test_silence_becomes_lag() -> None:
    world = World()
    stats = world.read("s0", millis_behind=40, last_event=100.0)
    world.now += SILENCE_SECONDS
    assert world.value(metrics.LAG, shard="s0") == 40
    world.now += 50
    assert world.value(metrics.LAG, shard="s0") == 40 + 60_000
    stats.state = State.ENDED
    assert (world.value(metrics.LAG, shard="s0"), world.value(metrics.SILENCE, shard="s0")) == (40, 0)


def test_records_that_wait_for_spark_grow_old() -> None:
    world = World()
    world.read("s0")
    assert world.value(metrics.WAITING, shard="s0") == 0
    world.feeds[0].buffer.waiting_since = 70.0  # type: ignore[union-attr]
    assert world.value(metrics.WAITING, shard="s0") == 30


def test_shards_beyond_the_limit_share_one_label() -> None:
    world = World(shards=1)
    for number, records in enumerate((1, 10, 100)):
        world.read(f"s{number}", records=records, millis_behind=number, last_event=100.0)
    assert world.value(metrics.RECORDS, shard="s0") == 1
    assert (world.value(metrics.RECORDS, shard="other"), world.value(metrics.LAG, shard="other")) == (110, 2)


def test_a_child_takes_its_parents_label_and_the_streams_totals_stay() -> None:
    world = World(shards=1)
    world.read("parent", records=5, opened=1)
    world.values()
    world.leave("parent")
    world.read("child", records=1, opened=1)
    assert (world.value(metrics.RECORDS, shard="parent"), world.value(metrics.RECORDS, shard="child")) == (None, 1)
    assert world.value(metrics.OPENED) == 2


def test_no_shards_need_be_told_apart() -> None:
    world = World(shards=0)
    world.read("s0", records=1, millis_behind=7, last_event=100.0)
    world.read("s1", records=10, millis_behind=3, last_event=100.0)
    world.leave("s1")
    assert (world.value(metrics.RECORDS), world.value(metrics.LAG)) == (11, 7)
    assert not any("shard" in dict(attributes) for _, attributes in world.values())


def test_error_codes_are_bounded() -> None:
    world = World()
    world.read("s0").failures.update({f"Error{number}": 1 for number in range(100)})
    failed = {
        dict(attributes)["error"]: n for (metric, attributes), n in world.values().items() if metric is metrics.FAILED
    }
    assert (len(failed), failed["other"]) == (33, 68)


def test_leases_and_the_buffer() -> None:
    world = World()
    assert world.budget.join(ShardKey("orders", "s0")).take(300)
    assert (world.value(metrics.BUFFERED), world.value(metrics.BUFFER_LIMIT)) == (300, 1000)
    assert (world.value(metrics.LEASES_WANTED), world.value(metrics.LEASES_HELD)) == (2, 1)
    assert world.value(metrics.LEASES_TAKEN) == 3
    assert world.value(metrics.LEASES_LOST, reason="taken") == 2
    assert world.value(metrics.LEASES_LOST, reason="not renewed") == 1


def test_only_attributes_of_the_catalog_are_used() -> None:
    for shards in (0, 1, 100):
        world = World(shards)
        world.read("s0", millis_behind=1, last_event=1.0).failures["X"] = 1
        for metric, attributes in world.values():
            assert dict(attributes).keys() - dict(ABOUT).keys() <= set(metric.attributes)
