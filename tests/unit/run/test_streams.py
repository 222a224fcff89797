"""Which streams a run reads, and how clients add some."""

import asyncio
from typing import Any

import pytest

from kinesis_efo.errors import StreamError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.run.streams import RunStreams


def ref(name: str, *, stream: str = "", arn: str = "") -> StreamRef:
    return StreamRef(name, stream or name, arn or f"arn:aws:kinesis:eu-west-1:111111111111:stream/{name}", None)


class Opened:
    """A stream that is listed when a test lets it be."""

    def __init__(self, ref: StreamRef) -> None:
        self.ref = ref
        self.listed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def refresh(self, *, patient: bool) -> None:
        await self.listed

    async def identify(self) -> None:
        await asyncio.sleep(0)


class Opening:
    """The streams of a run that began with `orders`, and what was opened since."""

    def __init__(self) -> None:
        self.further: list[Opened] = []
        names = {name: name for name in ("orders", "clicks")}
        manifest = Manifest("lake", "test", "eu-west-1", "leases", {"orders": ref("orders")}, "manifest.json", names)
        self.streams = RunStreams(manifest, self.open)

    def open(self, ref: StreamRef) -> Any:
        opened = Opened(ref)
        if ref.name != "orders":
            self.further.append(opened)
        return opened


async def passes() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_unlisted_stream_fails_its_clients_and_can_return() -> None:
    opening = Opening()
    streams = opening.streams
    streams.add({"clicks": ref("clicks")}, ())
    await passes()
    waiting = asyncio.create_task(streams.ready(["clicks"]))
    await passes()
    opening.further[0].listed.set_exception(StreamError("not allowed"))
    with pytest.raises(StreamError):
        await waiting
    assert list(streams.arns) == ["orders"]
    assert list(streams.opened) == ["orders"]
    streams.add({"clicks": ref("clicks")}, ())
    await passes()
    opening.further[1].listed.set_result(None)
    await streams.ready(["clicks"])
    assert list(streams.opened) == ["orders", "clicks"]


async def test_stream_without_readers_is_opened_again_once() -> None:
    opening = Opening()
    streams, clicks = opening.streams, {"clicks": ref("clicks")}
    for again in range(2):  # the second client comes while the stream is being opened
        streams.add(clicks, ())
        await passes()
        assert len(opening.further) == 1, again
    opening.further[0].listed.set_result(None)
    await streams.ready(clicks)
    streams.add(clicks, clicks)
    streams.add(clicks, ())
    await passes()
    assert len(opening.further) == 2
    assert streams.opened["clicks"] is opening.further[0], "until the new one is listed"
    opening.further[1].listed.set_result(None)
    await streams.ready(clicks)
    assert streams.opened["clicks"] is opening.further[1]


async def test_client_that_cannot_share_streams_gets_the_reason() -> None:
    streams = Opening().streams
    assert streams.faults({"orders": ref("orders"), "clicks": ref("clicks")}) == []
    (other,) = streams.faults({"orders": ref("orders", arn="arn:aws:kinesis:us-east-1:2:stream/orders")})
    assert "stream 'orders' is arn:aws:kinesis:us-east-1:2:stream/orders in this query" in other
    (renamed,) = streams.faults({"clicks": ref("clicks", stream="clicks-2")})
    assert "give both queries the same manifest" in renamed
