"""The producer compared with boto3 on the same server: throughput, CPU time, and the cost of back-pressure at the limit.

The server runs in a separate process; CPU time is the writer's only. Every way of writing puts the same records into a new
stream; the ways take turns.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Figure, Goal
from benchmarks.machine import AwsProcess, serve
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import ProducerSettings
from kinesis_efo_local import NoFaults, Request, Settings

try:
    # AGAINST= a version up to 0.2, where the other name is that of the producer for asyncio.
    from kinesis_efo.producer import BlockingProducer as Producer  # type: ignore[attr-defined]
except ImportError:
    from kinesis_efo.producer import Producer

ROUNDS = 5
SHARDS = 4
THREADS = 8
LOOP, POOL = "boto3 loop", f"boto3, {THREADS} threads"
PRODUCERS = ("producer", "producer, one by one", "producer, aggregating")
WITH_GOALS = PRODUCERS[:2]
SIZES = [(100, 50_000), (1_000, 25_000)]
ANSWER_SECONDS = 0.01  # the least that PutRecords takes between a host and Kinesis in the same region
LIMITED = 12_000  # records of 500 bytes for two shards of 1,000 records/s, and 1,000 at once each: 5 s
HALF = 1 << 127
_names = (f"benchmark-{number}" for number in itertools.count())


@dataclass
class Target:
    """A server, and a client for it."""

    aws: AwsProcess
    client: Any

    def stream(self, shards: int) -> str:
        """Create a stream; returns its name."""
        name = next(_names)
        self.client.create_stream(StreamName=name, ShardCount=shards)
        return name

    def settings(self) -> AwsSettings:
        """The settings for a producer."""
        return AwsSettings(region=self.aws.settings.region, endpoint_url=self.aws.endpoint_url)


class DistantAws(AwsProcess):
    """The local AWS with network latency. Without it, there is no waiting that a producer could overlap."""

    _module = "benchmarks.producer"


class Distance(NoFaults):
    """Delays every PutRecords."""

    async def before(self, request: Request) -> None:
        """See `FaultInjection`."""
        if request.operation == "PutRecords":
            await asyncio.sleep(ANSWER_SECONDS)


Write = Callable[[bytes, int], None]
Way = Callable[[Target, str], AbstractContextManager[Write]]


def run() -> list[Figure]:
    """Measure."""
    figures = []
    for kind, where in ((AwsProcess, "loopback"), (DistantAws, f"{ANSWER_SECONDS * 1_000:g} ms away")):
        with kind(settings=Settings()) as aws:
            for size, count in SIZES:
                figures += _throughput(Target(aws, aws.client("kinesis")), f"{size} B records, {where}", size, count)
    with AwsProcess(settings=Settings(write_limit=True)) as aws:
        figures.append(_at_the_limit(Target(aws, aws.client("kinesis"))))
    return figures


def _throughput(target: Target, case: str, size: int, count: int) -> list[Figure]:
    ways: dict[str, Way] = {
        LOOP: _loop,
        POOL: _pool,
        "producer": _producer,
        "producer, one by one": _one_by_one,
        "producer, aggregating": _aggregating,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    costs: dict[str, list[float]] = {name: [] for name in ways}
    served: list[float] = []
    data = b"x" * size
    for _ in range(ROUNDS):
        for name, way in ways.items():
            stream = target.stream(SHARDS)
            # The client exists already, and is not measured.
            with way(target, stream) as write:
                wall, cpu, server = time.perf_counter(), time.process_time(), target.aws.cpu_seconds
                write(data, count)
                rates[name].append(count / (time.perf_counter() - wall) / 1_000)
                costs[name].append((time.process_time() - cpu) / count * 1e6)
                served.append((target.aws.cpu_seconds - server) / count * 1e6)
            target.client.delete_stream(StreamName=stream)
    loop = Figure(case, f"{LOOP}: throughput", "1,000 records/s", tuple(rates[LOOP]))
    pool = Figure(case, f"{POOL}: throughput", "1,000 records/s", tuple(rates[POOL]))
    pool_cost = Figure(case, f"{POOL}: CPU", "µs/record", tuple(costs[POOL]))
    figures = [loop, Figure.against(loop, case, pool.what, rates[POOL])]
    for name in PRODUCERS:
        goal = Goal(3, of_ratio=True) if name in WITH_GOALS else None
        figures.append(Figure.against(loop, case, f"{name}: throughput", rates[name], goal))
    for name in WITH_GOALS:
        what = f"{name}: throughput, to the pool"
        figures.append(Figure.against(pool, case, what, rates[name], Goal(1, of_ratio=True)))
    figures += [Figure(case, f"{LOOP}: CPU", "µs/record", tuple(costs[LOOP])), pool_cost]
    for name in PRODUCERS:
        goal = Goal(0.5, least=False, of_ratio=True) if name in WITH_GOALS else None
        figures.append(Figure.against(pool_cost, case, f"{name}: CPU", costs[name], goal))
    # The server, one Python process, bounds the throughput of every way.
    return [*figures, Figure(case, "server: CPU", "µs/record", tuple(served))]


def _at_the_limit(target: Target) -> Figure:
    ideal = (LIMITED - 2_000) / 2_000
    runs = []
    for _ in range(ROUNDS):
        with Producer(target.stream(2), aws=target.settings()) as producer:
            begin = time.perf_counter()
            for number in range(LIMITED):
                producer.put(b"x" * 500, str(number), (number % 2) * HALF)
            producer.flush()
            runs.append((time.perf_counter() - begin) / ideal)
    return Figure(
        "1,000 records/s per shard", "producer: time to the ideal", "x", tuple(runs), goal=Goal(1.05, least=False)
    )


def _batches(data: bytes, count: int) -> Iterator[list[dict[str, Any]]]:
    for first in range(0, count, 500):
        yield [{"Data": data, "PartitionKey": str(number)} for number in range(first, min(first + 500, count))]


@contextmanager
def _loop(target: Target, stream: str) -> Iterator[Write]:
    def write(data: bytes, count: int) -> None:
        for batch in _batches(data, count):
            _put(target.client, stream, batch)

    yield write


@contextmanager
def _pool(target: Target, stream: str) -> Iterator[Write]:
    with ThreadPoolExecutor(THREADS) as pool:

        def write(data: bytes, count: int) -> None:
            for done in pool.map(lambda batch: _put(target.client, stream, batch), _batches(data, count)):
                assert done

        yield write


def _put(client: Any, stream: str, batch: list[dict[str, Any]]) -> bool:
    answer = client.put_records(StreamName=stream, Records=batch)
    assert answer["FailedRecordCount"] == 0
    return True


def _producer(target: Target, stream: str) -> AbstractContextManager[Write]:
    return _produce(target, stream, ProducerSettings(), _put_many)


def _one_by_one(target: Target, stream: str) -> AbstractContextManager[Write]:
    return _produce(target, stream, ProducerSettings(), _put_each)


def _aggregating(target: Target, stream: str) -> AbstractContextManager[Write]:
    return _produce(target, stream, ProducerSettings(aggregate=True), _put_many)


def _put_many(producer: Producer, data: bytes, count: int) -> None:
    producer.put_many((data, str(number)) for number in range(count))


def _put_each(producer: Producer, data: bytes, count: int) -> None:
    for number in range(count):
        producer.put(data, str(number))


@contextmanager
def _produce(
    target: Target, stream: str, settings: ProducerSettings, put: Callable[[Producer, bytes, int], None]
) -> Iterator[Write]:
    with Producer(stream, settings=settings, aws=target.settings()) as producer:

        def write(data: bytes, count: int) -> None:
            put(producer, data, count)
            producer.flush()
            assert producer.metrics.records_written == count

        yield write


if __name__ == "__main__":
    given, tls_port = json.loads(sys.argv[1])
    serve(given, tls_port, Distance())
