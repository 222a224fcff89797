"""Subscribes to one shard over each transport, one after the other, and measures the subscriptions. Does not store anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Final, Protocol

from aiobotocore.config import AioConfig

from kinesis_efo.clock import Clock, within
from kinesis_efo.http2.response import HttpFacts
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.kinesis.recovery import KINESIS_LIMITS, Limits
from kinesis_efo.kinesis.transport import BotoTransport, EventStream, Quota, Unlimited, subscription_config
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position
from kinesis_efo_tools.operate.access import Access, Clients
from kinesis_efo_tools.operate.findings import CheckFailed
from kinesis_efo_tools.operate.measurement import TRANSPORTS, Measurement, SubscriptionResult

ANSWER_SECONDS: Final = 20.0
"""Timeout for Kinesis' response, including the time to connect."""

SILENT_SECONDS: Final = 12.0
"""Timeout for the next event of a subscription. Kinesis sends an event about every 5 s even if a shard is idle."""


class CarriedEvents(EventStream, Protocol):
    """An event stream that also describes the connection over which it arrives, for example the HTTP version."""

    @property
    def http(self) -> HttpFacts:
        """The connection's HTTP and TLS versions, and its HTTP/2 settings."""
        ...


class Subscriber(Protocol):
    """Subscribes to shards over one transport."""

    async def subscribe(
        self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota
    ) -> CarriedEvents:
        """Subscribe to a shard after `position` (None: at the tip), like `Transport.subscribe`."""
        ...


Opens = Callable[[str], AbstractAsyncContextManager[Subscriber]]
"""A function that opens a subscriber over the transport of the given name."""


def over_aws(access: Access) -> Opens:
    """Return a function that opens subscribers with the region, endpoint and role of `access`, each with a separate connection."""

    @asynccontextmanager
    async def opened(transport: str) -> AsyncIterator[Subscriber]:
        config = AioConfig(**subscription_config(transport), max_pool_connections=1)
        async with await access.open("kinesis", config) as client:
            yield BotoTransport(client)

    return opened


async def measured(
    clients: Clients,
    ref: StreamRef,
    opens: Opens,
    seconds: float,
    clock: Clock,
    *,
    limits: Limits = KINESIS_LIMITS,
    tell: Callable[[str], None] = lambda _text: None,
) -> Measurement:
    """Subscribe to the first open shard of a stream over each transport, and measure. Disconnects any other reader with this consumer.

    Args:
        seconds: How long to read over each transport; longer if the first event takes longer.
        limits: Time limits of Kinesis. Tests set shorter ones.
        tell: Receives progress messages.

    Raises CheckFailed if the stream has no open shard, and the AWS SDK's errors if shards cannot be listed.
    """
    kinesis = await clients.client("kinesis")
    answer = await kinesis.list_shards(StreamARN=ref.stream_arn, ShardFilter={"Type": "AT_LATEST"}, MaxResults=1)
    if not answer["Shards"]:
        raise CheckFailed(f"{ref.stream_arn} has no open shard", "wait until the stream is ACTIVE")
    meter = _Meter(ref, answer["Shards"][0]["ShardId"], opens, seconds, clock, limits, tell)
    subscriptions = [await meter.measure(transport) for transport in TRANSPORTS]
    return Measurement(ref, meter.shard, kinesis.meta.endpoint_url, subscriptions)


class _Meter:
    """Measures subscriptions to one shard, one at a time, with the pauses that Kinesis requires."""

    def __init__(
        self,
        ref: StreamRef,
        shard: str,
        opens: Opens,
        seconds: float,
        clock: Clock,
        limits: Limits,
        tell: Callable[[str], None],
    ) -> None:
        self.shard = shard
        self._ref = ref
        self._opens = opens
        self._seconds = seconds
        self._clock = clock
        self._limits = limits
        self._tell = tell
        self._next_call = -inf

    async def measure(self, transport: str) -> SubscriptionResult:
        """Subscribe over a transport, and read. An error is not raised, but returned in the result."""
        found = SubscriptionResult(transport)
        try:
            async with self._opens(transport) as subscriber:
                await self._read(subscriber, found)
        except Exception as error:
            found.error = error
        return found

    async def _read(self, subscriber: Subscriber, found: SubscriptionResult) -> None:
        events, called = await self._subscribe(subscriber, found)
        try:
            answered = self._clock.monotonic()
            found.http, found.answered_after = events.http, answered - called
            if events.http.version != TRANSPORTS[found.transport]:
                raise ConnectionError(f"the answer came over {events.http.version}")
            try:
                await self._take(events, found, called, answered + self._seconds)
            finally:
                found.read_for = self._clock.monotonic() - answered
        finally:
            events.close()

    async def _subscribe(self, subscriber: Subscriber, found: SubscriptionResult) -> tuple[CarriedEvents, float]:
        """Subscribe. Retries once if the consumer has just subscribed to the shard. Returns the events and the time of the call."""
        label = TRANSPORTS[found.transport]
        for last in (False, True):
            if (pause := self._next_call - self._clock.monotonic()) > 0:
                self._tell(
                    f"{label}: waiting {pause:.1f} s, until Kinesis allows the next subscription to {self.shard}"
                )
                await self._clock.sleep(pause)
            self._tell(f"{label}: subscribing to {self.shard} of {self._ref.name}")
            called = self._clock.monotonic()
            try:
                call = subscriber.subscribe(self._ref, self.shard, None, Unlimited())
                events = await within(self._clock, ANSWER_SECONDS, call, discard=lambda late: late.close())
            except Exception as error:
                too_soon = classify(error).verdict is Verdict.TOO_SOON
                self._rest(self._limits.after_success if too_soon else self._limits.between_calls)
                if last or not too_soon:
                    raise
                continue
            self._rest(self._limits.after_success)
            if events is None:
                raise TimeoutError(f"Kinesis did not answer within {ANSWER_SECONDS:g} s")
            return events, called
        raise AssertionError("the last try returns or raises")

    def _rest(self, seconds: float) -> None:
        self._next_call = self._clock.monotonic() + seconds

    async def _take(self, events: CarriedEvents, found: SubscriptionResult, called: float, end: float) -> None:
        """Count events until the time `end`, but at least until the first event."""
        label = TRANSPORTS[found.transport]
        arriving = aiter(events)
        while True:
            left = end - self._clock.monotonic()
            if left <= 0 and found.events:
                return
            self._tell(f"{label}: reading {self.shard}, {max(left, 0):.0f} s left, {found.events:,} events so far")
            patience = min(left, SILENT_SECONDS) if found.events else SILENT_SECONDS
            try:
                event = await within(self._clock, patience, anext(arriving))
            except StopAsyncIteration:
                if not found.events:
                    raise EOFError("Kinesis ended the subscription before its first event") from None
                return
            if event is None and patience < SILENT_SECONDS:
                return
            if event is None:
                raise TimeoutError(f"no event for {SILENT_SECONDS:g} s")
            found.add(event, self._clock.monotonic() - called)
