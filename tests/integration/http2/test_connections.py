"""Connections over real sockets: how many there are, how they end, and how a dead one is found."""

import asyncio

import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from kinesis_efo.http2.response import ConnectionLost
from kinesis_efo.kinesis.faults import Verdict, classify
from tests.support.coroutine_tests import until
from tests.support.http2_peer import Request, http2_peer

from .conftest import client, event, fault_of, hold, read

# -- how many


async def test_limit_of_0_streams_is_reported() -> None:
    async with http2_peer(hold, streams=0) as server, client(server) as aws:
        with pytest.raises(ConnectionClosedError, match="MAX_CONCURRENT_STREAMS is 0") as caught:
            await aws.subscribe()
        assert classify(caught.value).verdict is Verdict.RETRY
        assert len(server.peers) == 1


async def test_a_refused_stream_is_tried_again_on_another_connection() -> None:
    async def answer(request: Request) -> None:
        # The first connection takes two, whatever it says.
        if request.peer is server.peers[0] and len(request.peer.requests) > 2 and busy:
            request.peer.h2.reset_stream(request.stream_id, ErrorCodes.REFUSED_STREAM)
            request.peer.flush()
        else:
            await hold(request)

    busy = True
    async with http2_peer(answer) as server, client(server) as aws:
        await aws.subscribe_all(2)
        streams = await aws.subscribe_all(2)
        assert [await read(stream, 1) for stream in streams] == [[1], [1]]
        assert len(server.peers[1].requests) == 2
        before = len(server.peers[0].requests)
        await aws.subscribe()
        assert len(server.peers[0].requests) == before, "what it refuses, it is not asked for again"
        busy = False
        await server.peers[0].set(SettingCodes.MAX_CONCURRENT_STREAMS, 4)
        await aws.subscribe_all(4)
        assert len(server.peers) == 2
        assert len(server.peers[0].requests) == before + 2, "until it says what it takes"


async def test_refused_request_is_sent_three_times() -> None:
    async def answer(request: Request) -> None:
        request.peer.h2.reset_stream(request.stream_id, ErrorCodes.REFUSED_STREAM)
        request.peer.flush()

    async with http2_peer(answer) as server, client(server) as aws:
        with pytest.raises(ConnectionClosedError, match="REFUSED_STREAM") as caught:
            await aws.subscribe()
        assert classify(caught.value).verdict is Verdict.RETRY
        assert len(server.requests) == 3
        # It may be one of many hosts that is sick.
        assert len(server.peers) == 3
        await until(lambda: all(peer.gone.is_set() for peer in server.peers))


# -- GOAWAY


async def test_goaway_moves_later_streams_only() -> None:
    begun = asyncio.Event()

    async def answer(request: Request) -> None:
        if request.peer is server.peers[0] and request.stream_id > 1:
            begun.set()  # It says nothing.
            return
        await hold(request)
        await finish.wait()
        await request.send(event(2), last=True)

    finish = asyncio.Event()
    async with http2_peer(answer) as server, client(server) as aws:
        first = await aws.subscribe()
        later = asyncio.ensure_future(aws.subscribe())
        await begun.wait()
        server.peers[0].go_away(1)
        assert await read(await later, 1) == [1]
        assert [len(peer.requests) for peer in server.peers] == [2, 1]
        assert not server.peers[0].gone.is_set()
        await aws.subscribe()
        assert [len(peer.requests) for peer in server.peers] == [2, 2], "nothing new on a connection that ends"
        finish.set()
        assert await read(first, 2) == [1, 2]
        assert await anext(first, None) is None
        await until(server.peers[0].gone.is_set)
        assert server.peers[0].errors == [ErrorCodes.NO_ERROR], "the service is told"


# -- streams and connections that break


@pytest.mark.parametrize("code", [ErrorCodes.INTERNAL_ERROR, ErrorCodes.CANCEL, ErrorCodes.NO_ERROR, 0x77])
async def test_a_reset_before_the_headers(code: int) -> None:
    async def answer(request: Request) -> None:
        request.peer.h2.reset_stream(request.stream_id, code)
        request.peer.flush()

    async with http2_peer(answer) as server, client(server) as aws:
        name = ErrorCodes(code).name if code in list(ErrorCodes) else f"error {code}"
        with pytest.raises(ConnectionClosedError, match=f"the service reset the stream: {name}") as caught:
            await aws.subscribe()
        assert classify(caught.value).verdict is Verdict.RETRY
        assert len(server.requests) == 1, "the service may have begun with it: that is the subscription's affair"


@pytest.mark.parametrize("how", ["rst", "fin"])
async def test_lost_connection_ends_all_its_streams(how: str) -> None:
    async with http2_peer(hold) as server, client(server) as aws:
        streams = await aws.subscribe_all(5)
        assert [await read(stream, 1) for stream in streams] == [[1]] * 5
        reading = [asyncio.ensure_future(fault_of(stream)) for stream in streams]
        if how == "rst":
            server.peers[0].close()
        else:
            server.peers[0].hang_up()
        faults = await asyncio.gather(*reading)
        assert {type(fault) for fault in faults} == {ConnectionLost}
        assert len({id(fault) for fault in faults}) == 5, "whoever raises an exception writes into it"
        assert await read(await aws.subscribe(), 1) == [1]
        assert len(server.peers) == 2


# -- closing


async def test_headers_that_never_come_are_an_error() -> None:
    async def silent(request: Request) -> None:
        pass

    async with http2_peer(silent) as server, client(server, silence=0.2) as aws:
        with pytest.raises(ReadTimeoutError, match=r"nothing arrived for 0\.2 s") as caught:
            await aws.subscribe()
        assert classify(caught.value).verdict is Verdict.RETRY
        await until(lambda: server.peers[0].resets == {1: ErrorCodes.CANCEL})
