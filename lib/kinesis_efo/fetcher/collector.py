"""Collects the metric samples of a process: of its fetcher, streams, leases and queries, and optionally of each shard.

The collector runs in a metrics exporter's thread, so it reads only plain numbers and copies of dictionaries. A shard's counts are kept
after its `ShardFeed` is closed, so that totals never decrease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.run import RunLease
from kinesis_efo.metrics import Attributes, Labels, Sample
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.metrics.labels import MOST_ERRORS, OTHER
from kinesis_efo.positions import ShardKey


class FetcherCollector:
    """Yields the metric samples of one process when it is called.

    Args:
        fetcher: The process's fetcher; None if the fetchers are in other processes.
        streams: The streams, by logical name.
        leases: The leases of the run; None if the run is in another process.
        about: The attributes that all samples have.
        shards: The maximum number of shards with separate samples.
        now: Returns the monotonic time in seconds.
        queries: Returns how many queries the run has and how many are catching up; None if the run is in another process.
    """

    def __init__(
        self,
        fetcher: Fetcher | None,
        streams: Mapping[str, Stream],
        leases: RunLease | None,
        about: Mapping[str, str],
        shards: int,
        now: Callable[[], float],
        queries: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._streams = streams
        self._leases = leases
        self._about = tuple(about.items())
        self._tells_apart = shards > 0
        self._shards = Labels(shards)
        self._errors = Labels(MOST_ERRORS)
        self._now = now
        self._queries = queries

    def __call__(self) -> Iterator[Sample]:
        """Yield the current samples. Samples with the same name and attributes (from several shards of a stream) must be summed."""
        if self._fetcher is not None:
            yield from self._of_fetcher(self._fetcher)
        for name, stream in list(self._streams.items()):
            yield Sample(metrics.LOSSES, stream.losses.count, (*self._about, ("stream", name)))
        if self._leases is not None:
            yield from self._of_leases(self._leases)
        if self._queries is not None:
            yield from self._of_queries(*self._queries())

    def _of_fetcher(self, fetcher: Fetcher) -> Iterator[Sample]:
        feeds = {feed.key: feed for feed in fetcher if feed.row.is_shared}
        self._shards.keep(feeds.keys())
        for name, stream in list(self._streams.items()):
            for shard, stats in list(stream.subscriptions.stats.items()):
                key = ShardKey(name, shard)
                yield from self._of_subscriptions(name, stats)
                yield from self._of_shard(key, stats, feeds.get(key), fetcher.budget)
        yield Sample(metrics.BUFFERED, fetcher.budget.used, self._about)
        yield Sample(metrics.BUFFER_LIMIT, fetcher.budget.limit, self._about)

    def _of_subscriptions(self, stream: str, stats: SubscriptionStats) -> Iterator[Sample]:
        about = (*self._about, ("stream", stream))
        yield Sample(metrics.OPENED, stats.opened, about)
        yield Sample(metrics.RENEWED, stats.renewed, about)
        yield Sample(metrics.PAUSED, stats.paused, about)
        yield Sample(metrics.OPEN, int(stats.state is State.STREAMING), about)
        for code, count in list(stats.failures.items()):
            yield Sample(metrics.FAILED, count, (*about, ("error", self._errors.label(code) or OTHER)))

    def _of_shard(
        self, key: ShardKey, stats: SubscriptionStats, feed: ShardFeed | None, budget: Budget
    ) -> Iterator[Sample]:
        about = (*self._about, ("stream", key.stream))
        if self._tells_apart:
            label = self._shards.label(key)
            if label is None:
                return
            about = (*about, ("shard", OTHER if label is OTHER else key.shard))
        yield Sample(metrics.RECORDS, stats.records, about)
        yield Sample(metrics.BYTES, stats.bytes, about)
        yield Sample(metrics.EVENTS, stats.events, about)
        yield Sample(metrics.BACKPRESSURE, budget.seconds_waited(key), about)
        if feed is not None:
            yield from self._of_feed(stats, feed, about)

    def _of_feed(self, stats: SubscriptionStats, feed: ShardFeed, about: Attributes) -> Iterator[Sample]:
        now = self._now()
        buffer = feed.buffer
        since = None if buffer is None else buffer.waiting_since
        yield Sample(metrics.WAITING, 0.0 if since is None else max(0.0, now - since), about)
        silence, lag = stats.silence(now), stats.lag(now)
        if silence is not None and lag is not None:
            yield Sample(metrics.SILENCE, silence, about)
            oldest = None if buffer is None else buffer.lag(buffer.start, now)
            yield Sample(metrics.LAG, max(lag, oldest or 0), about)

    def _of_queries(self, queries: int, apart: int) -> Iterator[Sample]:
        yield Sample(metrics.QUERIES, queries, self._about)
        yield Sample(metrics.QUERIES_APART, apart, self._about)
        for name, stream in list(self._streams.items()):
            if stream.separate is not None:
                stats = list(stream.separate.stats.values())
                about = (*self._about, ("stream", name))
                yield Sample(metrics.APART_BYTES, sum(each.bytes for each in stats), about)
                yield Sample(metrics.APART_CALLS, sum(each.events for each in stats), about)

    def _of_leases(self, leases: RunLease) -> Iterator[Sample]:
        lost = {"taken": leases.stats.lost_to_others, "not renewed": leases.stats.not_renewed}
        yield Sample(metrics.LEASES_WANTED, len(leases.wanted), self._about)
        yield Sample(metrics.LEASES_HELD, len(leases.held), self._about)
        yield Sample(metrics.LEASES_TAKEN, leases.stats.taken, self._about)
        for reason, count in lost.items():
            yield Sample(metrics.LEASES_LOST, count, (*self._about, ("reason", reason)))
