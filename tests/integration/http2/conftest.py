"""Real clients against a server of HTTP/2 that does what a test tells it to. In the end, nothing of a client is left."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from kinesis_efo.aws import prepared
from kinesis_efo.clock import Clock
from kinesis_efo.http2.session import session_class
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.kinesis.transport import BotoEventStream, BotoTransport, Quota, Unlimited, subscription_config
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import TRIM_HORIZON
from kinesis_efo.records.events import Event
from kinesis_efo.records.frames import encode_frame
from tests.support.coroutine_tests import run_by, until
from tests.support.http2_peer import Http2Peer, Request

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/dev-orders"
STREAM = StreamRef("orders", "dev-orders", ARN, f"{ARN}/consumer/lake:1")
HEADERS = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}


def event(number: int = 1, filler: int = 0) -> bytes:
    """A frame with an event, of some size."""
    body = f'{{"ContinuationSequenceNumber":"{number}","MillisBehindLatest":0,"Records":[],"Filler":"{"x" * filler}"}}'
    return encode_frame(HEADERS, body.encode())


def number(found: Event) -> int | None:
    """The number of an event."""
    return found.head.continuation


async def hold(request: Request) -> None:
    """Answer with one event, and then with nothing more."""
    request.begin()
    await request.send(event())


class Client:
    """Subscribes like a fetcher."""

    def __init__(self, boto: Any) -> None:
        self.boto = boto
        self.transport = BotoTransport(boto)

    async def subscribe(self, room: Quota | None = None, shard: int = 0) -> BotoEventStream:
        found = await self.transport.subscribe(STREAM, f"shardId-{shard:012}", TRIM_HORIZON, room or Unlimited())
        assert isinstance(found, BotoEventStream)
        return found

    async def subscribe_all(self, count: int) -> list[BotoEventStream]:
        return list(await asyncio.gather(*(self.subscribe(shard=shard) for shard in range(count))))


@asynccontextmanager
async def client(
    server: Http2Peer | str,
    transport: str = "http2",
    *,
    share: int = 1 << 62,
    silence: float = 20,
    clock: Clock | None = None,
    verify: bool | str | None = None,
    **config: Any,
) -> AsyncIterator[Client]:
    """A client of its own for each test; once it is closed, nothing of it is left."""
    url = server if isinstance(server, str) else f"http://127.0.0.1:{server.port}"
    settings = {**subscription_config(transport, lambda: share, silence=silence), "max_pool_connections": 50, **config}
    if clock is not None:
        settings["http_session_cls"] = session_class(transport, lambda: share, clock)
    async with prepared(AioSession()).create_client(
        "kinesis",
        region_name="us-east-1",
        endpoint_url=url,
        verify=verify,
        aws_access_key_id="AKIATEST",
        aws_secret_access_key="secret",
        aws_session_token="token-of-a-role",
        config=AioConfig(**settings),
    ) as boto:
        yield Client(boto)
    await asyncio.sleep(0)
    running: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    left = [coroutine for coroutine in running if "/kinesis_efo/" in coroutine.cr_code.co_filename]
    assert not left, "the client left tasks behind"


async def read(stream: BotoEventStream, count: int) -> list[int | None]:
    """The numbers of the next events."""
    return [number(await anext(stream)) for _ in range(count)]


async def fault_of(stream: BotoEventStream, text: str = "") -> Exception:
    """The error that ends a stream, which must be one that the subscription tries again after."""
    with pytest.raises(Exception, match=text or ".") as caught:
        await anext(stream)
    assert classify(caught.value).verdict is Verdict.RETRY
    return caught.value


def run(main: Coroutine[Any, Any, None], seconds: float = 20) -> None:
    """Run a scenario with a deadline. At its end there are no tasks, timers and sockets."""

    async def bounded() -> None:
        loop: Any = asyncio.get_running_loop()
        async with asyncio.timeout(seconds):
            await main
        me = asyncio.current_task()
        await until(lambda: asyncio.all_tasks() == {me})
        # Left are the loop's own, and the timer of this very wait.
        await until(lambda: len(loop._selector.get_map()) == 1)
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []

    asyncio.run(bounded(), debug=True)


pytest_pyfunc_call = run_by(run)
