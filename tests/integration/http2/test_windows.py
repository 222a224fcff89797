"""Flow control over real sockets: a stream that nobody has room for stands still, and nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

from h2.errors import ErrorCodes

from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.http2.response import ConnectionLost
from kinesis_efo.positions import ShardKey
from tests.support.http2_peer import Request, http2_peer

from .conftest import client, event, fault_of, hold, read, until


class Door:
    """Room behind a door, that the test opens."""

    def __init__(self, share: int) -> None:
        self.share = share
        self.open = asyncio.Event()

    def try_reserve(self, size: int) -> bool:
        return self.open.is_set()

    async def reserve(self, size: int) -> None:
        await self.open.wait()


async def test_stalled_stream_does_not_delay_the_others() -> None:
    async def answer(request: Request) -> None:
        request.begin()
        for count in range(1, 9):
            await request.send(event(count, 500_000))

    share = 64 << 10
    async with http2_peer(answer) as server, client(server, share=share) as aws:
        door = Door(share)
        stalled = await aws.subscribe(door)
        reading = asyncio.ensure_future(read(stalled, 8))
        others = [await aws.subscribe() for _ in range(4)]
        await asyncio.gather(*(read(other, 8) for other in others))
        await until(lambda: server.requests[0].window == 0)
        # What was read to know the length of the event, and as much again.
        assert server.requests[0].sent <= share
        assert not reading.done()
        assert len(server.peers) == 1
        door.open.set()
        assert await reading == list(range(1, 9))


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


async def test_the_largest_event_comes_through_the_smallest_window() -> None:
    async def answer(request: Request) -> None:
        request.begin()
        await request.send(event(1, 14 << 20))
        await request.send(event(2), last=True)

    async with http2_peer(answer) as server, client(server, share=0) as aws:
        stream = await aws.subscribe()
        first = await anext(stream)
        assert len(first.payload) > 14 << 20
        assert await read(stream, 1) == [2]
        assert await anext(stream, None) is None
        assert stream.received == server.requests[0].sent


async def test_windows_shrink_as_shards_join() -> None:
    async def answer(request: Request) -> None:
        request.begin()
        await request.send(bytes(1 << 20))

    budget = Budget(1 << 20)
    share: Any = None
    sent = []
    async with http2_peer(answer, streams=100) as server:
        for shards in (1, 15):
            for shard in range(shards):
                budget.open_account(ShardKey("orders", f"{shards}-{shard}"))
            share = budget.share
            async with client(server, share=share) as aws:
                await aws.subscribe()
                await until(lambda: server.requests[-1].window == 0)
                sent.append(server.requests[-1].sent)
    assert sent == [128 << 10, 8 << 10]


async def test_more_than_the_window_ends_the_connection() -> None:
    async with http2_peer(hold) as server, client(server, share=0) as aws:
        stream = await aws.subscribe()
        (peer,) = server.peers
        frame = (8192).to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big") + bytes(8192)
        peer.write(frame + frame)
        assert await read(stream, 1) == [1]
        fault = await fault_of(stream, "violates HTTP/2: 8192 bytes where")
        assert isinstance(fault, ConnectionLost)
        await until(peer.gone.is_set)
        assert peer.errors == [ErrorCodes.FLOW_CONTROL_ERROR]
