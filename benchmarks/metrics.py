"""The CPU time that metrics cost: a fetcher whose metrics are collected, compared with one whose are not, and each part alone.

Counting cannot be turned off, so its statements are measured alone, per event.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import count
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from benchmarks.canned import RECORDS_PER_EVENT, canned_kinesis, last_number
from benchmarks.earlier import read_by, row_of
from benchmarks.fetching import EVENTS, SHARDS, fetch
from benchmarks.figures import Figure, Goal
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.collector import FetcherCollector
from kinesis_efo.fetcher.feed import ShardFeed
from kinesis_efo.kinesis.stats import State, SubscriptionStats
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.run import LeaseStats
from kinesis_efo.metrics import METRICS, MetricsRegistry
from kinesis_efo.metrics.emf import EmfWriter
from kinesis_efo.metrics.otel import METER, publish
from kinesis_efo.metrics.registry import FRESH_SECONDS
from kinesis_efo.positions import ShardKey
from kinesis_efo.records.events import Event, EventHead

RUNS: Final = 7
RECORD_BYTES: Final = 1024
MANY_SHARDS: Final = 256
COLLECTIONS: Final = 5
COUNTED: Final = 100_000
INTERVAL: Final = 60.0
"""Seconds between two collections, the default of both exporters."""

_ONE_PERCENT: Final = Goal(1.0, least=False)
_LEASES: Final[Any] = SimpleNamespace(wanted=frozenset(), held=frozenset(), stats=LeaseStats())


def run() -> list[Figure]:
    """Measure. Percentages are of CPU time."""
    alone, collected = _compared()
    per_event = median(alone.runs) / (EVENTS[RECORD_BYTES] * SHARDS)
    counting = tuple(_counting() / per_event * 100 for _ in range(RUNS))
    return [
        alone,
        collected,
        Figure(alone.case, "counting, which is always on", "% of the fetcher", counting, goal=_ONE_PERCENT),
        *_parts(),
    ]


def _compared() -> tuple[Figure, Figure]:
    case = f"{RECORD_BYTES} B records, {SHARDS} shards"
    events = EVENTS[RECORD_BYTES]
    alone: list[float] = []
    collected: list[float] = []
    with canned_kinesis(RECORD_BYTES, events, SHARDS) as kinesis:
        for run in range(-1, RUNS):
            # In turns, each first every other time: the machine's speed varies more than what is measured.
            for watched, found in ((None, alone), (_collect_often, collected))[:: 1 if run % 2 else -1]:
                last = last_number(events)
                work = fetch(kinesis.endpoint, last) if watched is None else fetch(kinesis.endpoint, last, watched)
                taken = asyncio.run(work)
                if run >= 0:
                    found.append(taken)
    baseline = Figure(case, "fetcher", "CPU s", tuple(alone))
    return baseline, Figure.against(baseline, case, "metrics collected 20 times a second", collected)


def _collect_often(feeds: list[ShardFeed], budget: Budget, stream: Stream) -> Callable[[], None]:
    collector = _collector(feeds, budget, stream)
    registry = MetricsRegistry(now=_once_per_collection())
    registry.add(collector)
    reader = InMemoryMetricReader()
    publish(registry, MeterProvider([reader]).get_meter(METER))
    end = threading.Event()

    def collect() -> None:
        while not end.wait(0.05):
            reader.get_metrics_data()

    thread = threading.Thread(target=collect)
    thread.start()

    def stop() -> None:
        end.set()
        thread.join()
        reader.shutdown()

    return stop


def _parts() -> list[Figure]:
    case = f"{MANY_SHARDS} shards"
    budget = Budget(1 << 30)
    stats = {
        f"shardId-{number:012d}": SubscriptionStats(
            State.STREAMING, 5, 4, 0, events=number, millis_behind=3, last_event=0.0
        )
        for number in range(MANY_SHARDS)
    }
    buffer = SimpleNamespace(waiting_since=0.0, start=None, lag=lambda _start, _now: 1.0)
    feeds: list[Any] = [
        SimpleNamespace(key=ShardKey("orders", shard), row=row_of(ShardKey("orders", shard)), buffer=buffer)
        for shard in stats
    ]
    registry = MetricsRegistry(now=_once_per_collection())
    stream = SimpleNamespace(
        stats=stats,  # for earlier versions
        subscriptions=SimpleNamespace(stats=stats),
        losses=SimpleNamespace(count=0),
        separate=None,
    )
    source = _collector(feeds, budget, stream)
    list(source())  # raises an error, which a registry would only log
    registry.add(source)
    reader = InMemoryMetricReader()
    publish(registry, MeterProvider([reader]).get_meter(METER))
    writer = EmfWriter(read_by(EmfWriter, source, registry), INTERVAL, lambda _text: None)
    otel = [_milliseconds(reader.get_metrics_data, COLLECTIONS) for _ in range(RUNS)]
    emf = [_milliseconds(writer.write, COLLECTIONS) for _ in range(RUNS)]
    reader.shutdown()

    def share(milliseconds: list[float]) -> tuple[float, ...]:
        return tuple(each / 1000 / INTERVAL * 100 for each in milliseconds)

    return [
        Figure(case, "one collection by OpenTelemetry", "CPU ms", tuple(otel)),
        Figure(case, "one set of EMF lines", "CPU ms", tuple(emf)),
        Figure(case, "OpenTelemetry, once a minute", "% of a core", share(otel), goal=_ONE_PERCENT),
        Figure(case, "EMF, once a minute", "% of a core", share(emf), goal=_ONE_PERCENT),
    ]


class _Fetcher(list[Any]):
    """A fetcher with these feeds."""

    budget: Budget
    feeds: list[Any]


def _collector(feeds: list[ShardFeed], budget: Budget, stream: Any) -> FetcherCollector:
    fetcher: Any = _Fetcher(feeds)
    fetcher.budget, fetcher.feeds = budget, feeds
    about = {"application": "lake", "environment": "dev"}
    return FetcherCollector(fetcher, {"orders": stream}, _LEASES, about, MANY_SHARDS, time.monotonic)


def _once_per_collection() -> Callable[[], float]:
    """A clock by which the registry reads its collectors once for every collection of all metrics."""
    ticks = count(1)
    return lambda: next(ticks) * FRESH_SECONDS / len(METRICS)


def _milliseconds(collect: Callable[[], object], times: int) -> float:
    begin = time.process_time()
    for _ in range(times):
        collect()
    return (time.process_time() - begin) / times * 1000


def _counting() -> float:
    """CPU seconds per event of the statements by which `ShardSubscription` counts."""
    stats = SubscriptionStats()
    event = Event(b"x" * RECORD_BYTES, EventHead(continuation=1, millis_behind=0, records=RECORDS_PER_EVENT))
    begin = time.process_time()
    for _ in range(COUNTED):
        stats.millis_behind = event.head.millis_behind
        stats.last_event = 0.0
        stats.events += 1
        stats.records += event.head.records
        stats.bytes += len(event.payload)
    return (time.process_time() - begin) / COUNTED
