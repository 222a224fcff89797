"""Subscriptions end to end over real HTTP: through expiry, reshards, broken connections and back-pressure."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kinesis_efo.kinesis.recovery import Limits, ReadContext
from kinesis_efo.kinesis.subscription import ShardSubscription
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import RetrySettings
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.events import Event
from kinesis_efo_local import Close, Finish, GoAway, NoFaults, Reset, ResetStream
from tests.support.transports import OpenSink

from .conftest import Bench, until

SHARD = "shardId-000000000000"
QUICK = Limits(between_calls=0, after_success=0, too_short=0, silence=5, full=0.3)
RETRY = RetrySettings(base_ms=5, max_ms=20)
Local = Callable[..., Bench]


class Sink(OpenSink):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.has_room = asyncio.Event()
        self.has_room.set()

    async def admit(self, event: Event) -> None:
        await self.has_room.wait()
        self.events.append(event)

    @property
    def keys(self) -> list[str]:
        payloads = [event.payload for event in self.events if event.payload]
        # Event by event: decoding them together would forgive an event that comes twice.
        return [
            key
            for payload in payloads
            for batch in decode([payload], ShardKey("o", SHARD), TRIM_HORIZON, SHARD_END, deaggregate=False)
            for key in batch["partitionKey"].to_pylist()
        ]


def reader(
    client: Any,
    stream: StreamRef,
    sink: Sink,
    shard_id: str = SHARD,
    start: Position = TRIM_HORIZON,
    retry: RetrySettings = RETRY,
    **changes: Any,
) -> ShardSubscription:
    context = ReadContext(
        stream, "manifest.json", BotoTransport(client), Topology(client), retry, replace(QUICK, **changes)
    )
    return ShardSubscription(context, shard_id, start, sink)


# Shows 2, 14.
async def test_renewals_lose_and_double_nothing(local: Local) -> None:
    bench = local(subscription_seconds=0.25, max_event_records=20)
    stream = bench.stream()
    expected = [f"key-{number}" for number in range(1500)]
    async with bench.client() as client:
        sink = Sink()
        subscription = reader(client, stream, sink)
        task = asyncio.ensure_future(subscription.run())
        for start in range(0, 1500, 100):
            await asyncio.to_thread(bench.put, *expected[start : start + 100])
        await until(lambda: subscription.stats.records == 1500 and subscription.stats.renewed >= 3)
        assert sink.keys == expected
        assert not subscription.stats.failures
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not bench.aws.kinesis.subscriptions)


class Havoc(NoFaults):
    """Breaks every few frames in some way, the same ways each run."""

    def __init__(self) -> None:
        self.random = random.Random(2013)
        self.broken = 0

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Any]:
        if self.random.random() > 0.2:
            return [frame]
        self.broken += 1
        half = frame[: self.random.randrange(len(frame))]
        flipped = bytearray(frame)
        flipped[self.random.randrange(len(frame))] ^= 4
        return self.random.choice(
            [
                [Reset()],
                [Close()],
                [Finish()],
                [ResetStream()],
                [ResetStream(7)],
                [GoAway(grace=False)],
                [bytes(flipped)],
                [half, Reset()],
                [half, Close()],
                [half, Finish()],
                [half, ResetStream()],
                [GoAway(), frame],
            ]
        )


# Shows 44.
async def test_broken_connections_lose_and_double_nothing(local: Local) -> None:
    havoc = Havoc()
    bench = local(havoc, max_event_records=10)
    stream = bench.stream()
    expected = [f"key-{number}" for number in range(1000)]
    bench.put(*expected)
    async with bench.client() as client:
        sink = Sink()
        # A reset also drops what was received and not read yet: on a busy machine many connections in a row bring nothing.
        subscription = reader(client, stream, sink, retry=replace(RETRY, max_retries=10_000))
        task = asyncio.ensure_future(subscription.run())
        await until(lambda: task.done() or subscription.stats.records >= 1000, 60)
        task.cancel()
        await asyncio.wait([task])
        assert sink.keys == expected
        assert havoc.broken > 10


# Shows 26.
async def test_full_sink_closes_the_connection(local: Local) -> None:
    bench = local(max_event_records=1)
    stream = bench.stream()
    bench.put(*"abcdefgh")
    async with bench.client() as client:
        sink = Sink()
        subscription = reader(client, stream, sink)
        sink.has_room.clear()
        task = asyncio.ensure_future(subscription.run())
        await until(lambda: bench.aws.kinesis.subscriptions)
        await until(lambda: not bench.aws.kinesis.subscriptions)
        assert sink.events == []
        sink.has_room.set()
        await until(lambda: subscription.stats.records == 8)
        assert sink.keys == list("abcdefgh")
        assert (subscription.stats.paused, dict(subscription.stats.failures)) == (1, {})
        task.cancel()
        await asyncio.wait([task])
