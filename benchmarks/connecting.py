"""The time until every shard of a stream is subscribed, from far away, and the CPU that it takes.

A relay makes the distance; Kinesis' limit of streams per connection holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from multiprocessing.connection import Connection
from typing import Final

from aiobotocore.config import AioConfig

from benchmarks.canned import canned_kinesis, last_number
from benchmarks.certificate import trusted_certificate
from benchmarks.fetching import NAMES, REF, REGION
from benchmarks.figures import Figure, Goal
from benchmarks.machine import process_of
from benchmarks.relay import delayed
from kinesis_efo.aws import AsyncClients
from kinesis_efo.kinesis.transport import BotoTransport, Unlimited, subscription_config
from kinesis_efo.options import AwsSettings
from kinesis_efo.positions import Position

SHARDS: Final = 300
ROUND_TRIP: Final = 0.05
RUNS: Final = 5
GOAL: Final = Goal(5, least=False)


def run() -> list[Figure]:
    """Measure. The time begins before there is a client, and ends when the last subscription is open."""
    figures = []
    for tls in (False, True):
        taken: dict[str, list[tuple[float, float]]] = {transport: [] for transport in NAMES}
        with contextlib.ExitStack() as stack:
            stack.enter_context(trusted_certificate())
            endpoints = {}
            for transport in NAMES:
                server = stack.enter_context(canned_kinesis(1024, 1, SHARDS, http2=transport == "http2", tls=tls))
                endpoints[transport] = stack.enter_context(delayed(server.endpoint, ROUND_TRIP))
            for _ in range(RUNS):
                for transport, endpoint in endpoints.items():
                    with process_of(_subscribe, endpoint, transport) as process:
                        taken[transport].append(process.recv())
        case = f"{SHARDS} shards, {ROUND_TRIP * 1e3:g} ms round trip, {'TLS' if tls else 'in the clear'}"
        for what, goal in (("until all are subscribed", GOAL), ("CPU meanwhile", None)):
            seconds = {transport: [run[goal is None] for run in runs] for transport, runs in taken.items()}
            baseline = Figure(case, f"{what}, HTTP/1.1", "s", tuple(seconds["http1"]))
            over_http2 = Figure.against(baseline, case, f"{' ' * len(what)}  HTTP/2", seconds["http2"], goal)
            figures += [baseline, over_http2]
    return figures


def _subscribe(result: Connection, endpoint: str, transport: str) -> None:
    result.send(asyncio.run(_subscribing(endpoint, transport)))


async def _subscribing(endpoint: str, transport: str) -> tuple[float, float]:
    """Seconds, and CPU seconds."""
    began, used = time.monotonic(), time.process_time()
    config = AioConfig(**subscription_config(transport), max_pool_connections=2 * SHARDS)
    async with await AsyncClients(AwsSettings(endpoint_url=endpoint), REGION).open("kinesis", config) as client:
        kinesis, start = BotoTransport(client), Position.after(last_number(1))
        streams = await asyncio.gather(
            *(kinesis.subscribe(REF, f"shardId-{number:012d}", start, Unlimited()) for number in range(SHARDS))
        )
        taken = time.monotonic() - began, time.process_time() - used
        for stream in streams:
            stream.close()
        return taken
