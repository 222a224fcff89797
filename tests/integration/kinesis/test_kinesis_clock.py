"""Any answer of Kinesis tells its time: those that open a subscription, refusals, and those of GetRecords."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from botocore.exceptions import ClientError

from kinesis_efo.clock import SystemClock
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.polling import PollingTransport
from kinesis_efo.kinesis.transport import BotoTransport, Unlimited
from kinesis_efo.positions import TRIM_HORIZON
from tests.integration.kinesis.conftest import Bench

Local = Callable[..., Bench]
SHARD = "shardId-000000000000"


class Slow:
    """Kinesis' clock, a minute behind this machine's."""

    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        return time.time() - 60


def check(clock: KinesisClock) -> None:
    assert clock.knows
    truth = time.time() - 60
    assert clock.time() <= truth <= clock.latest
    assert clock.latest - clock.time() < 1 + 5, "the round trip is counted"
    assert 58 < clock.skew <= 60


async def test_the_answer_that_opens_a_subscription(local: Local) -> None:
    bench = local(clock=Slow(), signature_seconds=300.0)
    stream = bench.stream()
    async with bench.client() as client:
        clock = KinesisClock(SystemClock())
        clock.watch(client)
        events = await BotoTransport(client).subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
        check(clock)
        events.close()


async def test_a_refusal(local: Local) -> None:
    bench = local(clock=Slow(), signature_seconds=300.0)
    stream = bench.stream()
    async with bench.client() as client:
        clock = KinesisClock(SystemClock())
        clock.watch(client)
        with suppress(ClientError):
            await BotoTransport(client).subscribe(stream, "shardId-000000000009", TRIM_HORIZON, Unlimited())
        check(clock)


async def test_get_records(local: Local) -> None:
    bench = local(clock=Slow(), signature_seconds=300.0)
    stream = bench.stream()
    async with bench.client() as client:
        clock = KinesisClock(SystemClock())
        clock.watch(client)
        polling = PollingTransport(client, clock, 1.0)
        events = await polling.subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
        await anext(aiter(events))
        check(clock)
        events.close()
