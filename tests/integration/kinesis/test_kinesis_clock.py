"""Any answer of Kinesis tells its time: those that open a subscription, refusals, and those of GetRecords."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kinesis_efo.clock import SystemClock
from kinesis_efo.kinesis.clock import KinesisClock
from kinesis_efo.kinesis.polling import PollingTransport
from kinesis_efo.kinesis.transport import BotoTransport, Unlimited
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import TRIM_HORIZON
from tests.integration.kinesis.conftest import Bench

Call = Callable[[Any, KinesisClock, StreamRef], Awaitable[None]]
SHARD = "shardId-000000000000"


class Slow:
    """Kinesis' clock, a minute behind this machine's."""

    monotonic = staticmethod(time.monotonic)

    def time(self) -> float:
        return time.time() - 60


async def subscribe(client: Any, _: KinesisClock, stream: StreamRef) -> None:
    (await BotoTransport(client).subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())).close()


async def be_refused(client: Any, _: KinesisClock, stream: StreamRef) -> None:
    with pytest.raises(ClientError):
        await BotoTransport(client).subscribe(stream, "shardId-000000000009", TRIM_HORIZON, Unlimited())


async def get_records(client: Any, clock: KinesisClock, stream: StreamRef) -> None:
    events = await PollingTransport(client, clock, 1.0).subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
    await anext(aiter(events))
    events.close()


@pytest.mark.parametrize("call", [subscribe, be_refused, get_records])
async def test_each_answer_has_the_time(local: Callable[..., Bench], call: Call) -> None:
    bench = local(clock=Slow(), signature_seconds=300.0)
    stream = bench.stream()
    async with bench.client() as client:
        clock = KinesisClock(SystemClock())
        clock.watch(client)
        await call(client, clock, stream)
        truth = time.time() - 60
        assert clock.is_set
        assert clock.time() <= truth <= clock.latest
        assert clock.latest - clock.time() < 1 + 5, "the round trip is counted"
        assert 58 < clock.skew <= 60
