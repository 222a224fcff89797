"""What a fetcher's counts become: per shard, per stream, and nothing that steps back when shards come and go."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.fetcher.work import RowKey
from kinesis_efo.kinesis.stats import State, SubscriptionStats
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
                subscriptions=SimpleNamespace(stats=self.stats), separate=apart, losses=SimpleNamespace(count=2)
            ),
            "polled": SimpleNamespace(
                subscriptions=SimpleNamespace(stats={}), separate=None, losses=SimpleNamespace(count=0)
            ),
        }
        self.collector = FetcherCollector(
            self, streams, leases, dict(ABOUT), shards, lambda: self.now, lambda: self.queries
        )

    def read(self, shard: str, **stats: Any) -> SubscriptionStats:
        """A shard that is read, with what it has counted."""
        self.stats[shard] = SubscriptionStats(State.STREAMING, **stats)
        feed: Any = SimpleNamespace(
            key=ShardKey("orders", shard), row=RowKey(None, ShardKey("orders", shard)), buffer=EventIndex(TRIM_HORIZON)
        )
        self.feeds.append(feed)
        return self.stats[shard]

    def values(self) -> Values:
        return merge({}, self.collector())

    def __iter__(self) -> Iterator[ShardFeed]:
        return iter(self.feeds)

    def value(self, metric: Metric, **attributes: str) -> float | None:
        names = ({"stream": "orders"} if "stream" in metric.attributes else {}) | attributes
        return self.values().get((metric, (*ABOUT, *names.items())))


def test_metrics_are_per_shard_and_subscriptions_summed() -> None:
    world = World()
    world.read("s0", records=3, opened=1, millis_behind=40, last_event=99.0)
    stats = world.read("s1", records=4, opened=2, millis_behind=10, last_event=98.0)
    stats.failures.update({"LimitExceededException": 2})
    assert (world.value(metrics.RECORDS, shard="s0"), world.value(metrics.RECORDS, shard="s1")) == (3, 4)
    assert (world.value(metrics.LAG, shard="s0"), world.value(metrics.SILENCE, shard="s1")) == (40, 2)
    assert (world.value(metrics.OPENED), world.value(metrics.OPEN)) == (3, 2)
    assert world.value(metrics.FAILED, error="LimitExceededException") == 2


def test_separate_reading_of_queries_is_counted_separately() -> None:
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


def test_leases_and_the_buffer() -> None:
    world = World()
    assert world.budget.open_account(ShardKey("orders", "s0")).try_reserve(300)
    assert (world.value(metrics.BUFFERED), world.value(metrics.BUFFER_LIMIT)) == (300, 1000)
    assert (world.value(metrics.LEASES_WANTED), world.value(metrics.LEASES_HELD)) == (2, 1)
    assert world.value(metrics.LEASES_TAKEN) == 3
    assert world.value(metrics.LEASES_LOST, reason="taken") == 2
    assert world.value(metrics.LEASES_LOST, reason="not renewed") == 1
