"""Real aiobotocore clients against the local AWS over real HTTP."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from kinesis_efo.aws import prepared
from kinesis_efo.kinesis.transport import subscription_config
from kinesis_efo.manifest import StreamRef
from kinesis_efo_local import LocalAws, Settings
from tests.support import world
from tests.support.coroutine_tests import run_by

SET_CLOCK: dict[str, Any] = {"signature_seconds": math.inf}
"""Clients sign with the real clock, whatever the server's says."""

QUICK: dict[str, Any] = {**world.QUICK, "idle_event_seconds": 0.1}


@asynccontextmanager
async def subscriber(endpoint_url: str, transport: str, **config: Any) -> AsyncIterator[Any]:
    """A client as subscriptions have it."""
    async with prepared(AioSession()).create_client(
        "kinesis",
        region_name="us-east-1",
        endpoint_url=endpoint_url,
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="secret",
        config=AioConfig(**{**subscription_config(transport), "max_pool_connections": 50, **config}),
    ) as client:
        yield client


class Bench:
    """One local AWS, and what tests do with it.

    Attributes:
        transport: How subscriptions are carried.
    """

    def __init__(self, aws: LocalAws, transport: str) -> None:
        self.aws = aws
        self.transport = transport
        self.kinesis = aws.client("kinesis")

    def stream(self, shards: int = 1, name: str = "dev-orders") -> StreamRef:
        """A stream with a consumer."""
        self.kinesis.create_stream(StreamName=name, ShardCount=shards)
        arn = self.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
        consumer = self.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="lake")["Consumer"]
        return StreamRef("orders", name, arn, consumer["ConsumerARN"])

    def put(
        self, *keys: str, data: bytes = b"data", stream: str = "dev-orders", hash_key: str | None = None
    ) -> list[int]:
        """Put records, and return their sequence numbers."""
        numbers = []
        for start in range(0, len(keys), 500):
            entries = [{"Data": data, "PartitionKey": key} for key in keys[start : start + 500]]
            if hash_key is not None:
                entries = [{**entry, "ExplicitHashKey": hash_key} for entry in entries]
            answer = self.kinesis.put_records(StreamName=stream, Records=entries)
            assert answer["FailedRecordCount"] == 0
            numbers += [int(record["SequenceNumber"]) for record in answer["Records"]]
        return numbers

    @asynccontextmanager
    async def client(self, **config: Any) -> AsyncIterator[Any]:
        async with subscriber(self.aws.endpoint_url, self.transport, **config) as client:
            yield client


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")


@pytest.fixture(params=["http2", "http1"])
def carried_by(request: pytest.FixtureRequest) -> str:
    """How subscriptions are carried: each scenario runs over both. Modules without subscriptions override this."""
    return str(request.param)


@pytest.fixture
def local(carried_by: str) -> Iterator[Callable[..., Bench]]:
    """Starts a local AWS; arguments are settings, and `faults` and `clock`."""
    running: list[LocalAws] = []

    def start(faults: Any = None, clock: Any = time, **settings: Any) -> Bench:
        aws = LocalAws(
            settings=Settings(**{**QUICK, **SET_CLOCK, **settings} if clock is not time else {**QUICK, **settings}),
            faults=faults,
            clock=clock,
        )
        running.append(aws.start())
        return Bench(aws, carried_by)

    yield start
    for aws in running:
        aws.stop()


def run(main: Coroutine[Any, Any, None], seconds: float = 30) -> None:
    """Run a scenario with a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await main

    asyncio.run(bounded())


pytest_pyfunc_call = run_by(run)
