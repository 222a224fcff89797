"""Creates the parts of a fetcher: its event loop, AWS clients, transports, streams and TLS certificate."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Final

from aiobotocore.config import AioConfig

from kinesis_efo.aws import AsyncClients
from kinesis_efo.calls.address import Listening
from kinesis_efo.calls.tls import Certificate, make_certificate
from kinesis_efo.clock import Clock
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.polling import POLLING_CONFIG, PollingTransport, polling_limits, separate_pace
from kinesis_efo.kinesis.recovery import Limits
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.kinesis.topology import Topology
from kinesis_efo.kinesis.transport import BotoTransport, OpenedLater, Transport, subscription_config
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import SourceOptions

_MOST_SUBSCRIPTIONS: Final = 20_000


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for a fetcher: uvloop's, which needs a fifth less CPU, or asyncio's if uvloop is missing or turned off."""
    # uvloop may be installed only because another program needs it, so users can turn it off for fetchers.
    if os.environ.get("KINESIS_EFO_UVLOOP", "").lower() == "off":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def stream_opener(
    stack: AsyncExitStack,
    clients: AsyncClients,
    source: str,
    options: SourceOptions,
    budget: Budget,
    clock: KinesisClock,
    limits: Limits,
) -> Callable[[StreamRef], Stream]:
    """Open the clients for reading streams. Return a function that creates the `Stream` for a manifest's `StreamRef`.

    Args:
        stack: The exit stack that will close the clients.
        source: Where the manifest came from, for messages.
        clock: Kinesis' clock, which will read the time from the clients' responses.
    """
    control = await stack.enter_async_context(await clients.open("kinesis"))
    clock.watch(control)
    transport = await _open_transport(stack, clients, options, budget, clock)
    # `OpenedLater` opens its client at the first call. Enter its exit stack now, so that whatever is opened later is closed before it.
    later = await stack.enter_async_context(AsyncExitStack())
    apart = OpenedLater(partial(_open_separate, later, clients, options, clock))
    apart_limits = polling_limits(limits, _separate_rate(options))
    limits = polling_limits(limits) if options.read_mode == "polling" else limits

    def open_stream(ref: StreamRef) -> Stream:
        stream = Stream(
            ref,
            transport,
            Topology(control, clock),
            options.retry,
            source,
            clock,
            limits,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        stream.allow_separate(apart, apart_limits)
        return stream

    return open_stream


async def _open_transport(
    stack: AsyncExitStack, clients: AsyncClients, options: SourceOptions, budget: Budget, clock: KinesisClock
) -> Transport:
    polling = options.read_mode == "polling"
    config = AioConfig(
        **(POLLING_CONFIG if polling else subscription_config(options.transport, lambda: budget.share)),
        max_pool_connections=_MOST_SUBSCRIPTIONS,
    )
    client = await stack.enter_async_context(await clients.open("kinesis", config))
    clock.watch(client)
    if polling:
        return PollingTransport(client, clock, options.polling_interval)
    return BotoTransport(client)


async def _open_separate(
    stack: AsyncExitStack, clients: AsyncClients, options: SourceOptions, clock: KinesisClock
) -> Transport:
    config = AioConfig(**POLLING_CONFIG, max_pool_connections=_MOST_SUBSCRIPTIONS)
    client = await stack.enter_async_context(await clients.open("kinesis", config))
    # Read Kinesis' time from these responses, too: with a wrong time (after a suspend, for example), trimmed records are not detected.
    clock.watch(client)
    return PollingTransport(client, clock, options.polling_interval, partial(separate_pace, _separate_rate(options)))


def _separate_rate(options: SourceOptions) -> int:
    """Return how many bytes per second a query that is catching up may read from a shard with GetRecords: at most Kinesis' limit."""
    return min(options.shard_rate, 2 << 20)


def certificate_for(listening: Listening, clock: Clock) -> Certificate | None:
    """Create a TLS certificate for a service, using the current time of `clock`; None if the service listens only on loopback."""
    return None if listening.loopback_only else make_certificate(datetime.fromtimestamp(clock.time(), UTC))
