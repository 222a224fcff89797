"""Flow control over real sockets: a stream that nobody has room for stands still, and nothing else does."""

import asyncio

from h2.errors import ErrorCodes

from kinesis_efo.http2.response import ConnectionLost
from tests.support.coroutine_tests import until
from tests.support.http2_peer import Request, http2_peer

from .conftest import client, event, fault_of, hold, read


class Door:
    """Room behind a door, that the test opens."""

    def __init__(self, share: int) -> None:
        self.share = share
        self.open = asyncio.Event()

    def try_reserve(self, size: int) -> bool:
        return self.open.is_set()

    async def reserve(self, size: int) -> None:
        await self.open.wait()


async def test_a_stalled_stream_is_not_silent() -> None:
    async def answer(request: Request) -> None:
        request.begin()
        await request.send(event(1, 500_000 if request.stream_id == 1 else 0))

    share = 16 << 10
    async with http2_peer(answer) as server, client(server, share=share, silence=0.1) as aws:
        door = Door(share)
        reading = asyncio.ensure_future(read(await aws.subscribe(door), 1))
        await until(lambda: server.requests[0].window == 0)
        # One that waits for events is silent, and by then the stalled one has stood still for longer.
        waiting = await aws.subscribe()
        assert await read(waiting, 1) == [1]
        await fault_of(waiting, "nothing arrived for 0.1 s")
        assert not reading.done()
        door.open.set()
        assert await reading == [1]


async def test_more_than_the_window_ends_the_connection() -> None:
    async with http2_peer(hold) as server, client(server, share=0) as aws:
        stream = await aws.subscribe()
        (peer,) = server.peers
        # What is left of the window and a byte more, of an event that is not complete.
        for size in (8192 - len(event()), 1):
            peer.write(size.to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big") + event(2, 20_000)[:size])
        assert await read(stream, 1) == [1]
        assert isinstance(await fault_of(stream, "violates HTTP/2: 1 bytes where 0 were allowed"), ConnectionLost)
        await until(peer.gone.is_set)
        assert peer.errors == [ErrorCodes.FLOW_CONTROL_ERROR]
