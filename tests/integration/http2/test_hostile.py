"""Services that break the rules, or keep to them too much: what they cost is one try, and nobody else's."""

import asyncio

import pytest
from botocore.exceptions import ConnectionClosedError
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hpack import Encoder

from kinesis_efo.http2.response import ConnectionLost
from kinesis_efo.kinesis.faults import Verdict, classify
from tests.support.coroutine_tests import until
from tests.support.http2_peer import EVENT_STREAM, Request, http2_peer

from .conftest import client, event, fault_of, hold, read


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4


# -- answers that are errors


@pytest.mark.parametrize(("said", "sent"), [(100, 50), (100, 150), (0, 10), (100, 0)])
async def test_wrong_content_length_ends_the_stream_alone(said: int, sent: int) -> None:
    async def answer(request: Request) -> None:
        if request.stream_id == 1:
            await hold(request)
            return
        request.begin({":status": "400", "content-length": str(said)})
        request.peer.write(frame(DATA, END_STREAM, request.stream_id, b" " * sent))

    async with http2_peer(answer) as server, client(server) as aws:
        other = await aws.subscribe()
        with pytest.raises(ConnectionError, match=f"after {sent} bytes, but its content-length is {said}") as caught:
            await aws.subscribe()
        assert classify(caught.value).verdict is Verdict.RETRY
        await server.requests[0].send(event(2))
        assert await read(other, 2) == [1, 2]


# -- unusual, but allowed


async def test_informational_answers_and_trailers_and_no_events_at_all() -> None:
    async def answer(request: Request) -> None:
        h2, stream_id = request.peer.h2, request.stream_id
        h2.send_headers(stream_id, [(":status", "103"), ("link", "x")])
        request.begin({**EVENT_STREAM, "content-length": str(len(event()))})
        await request.send(event())
        h2.send_headers(stream_id, [("x-checksum", "abc")], end_stream=True)
        request.peer.flush()

    async with http2_peer(answer, streams=1) as server, client(server) as aws:
        for _ in range(3):
            stream = await aws.subscribe()
            assert await read(stream, 1) == [1]
            assert await anext(stream, None) is None
        assert len(server.peers) == 1
        assert server.peers[0].resets == {}


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, b"are you?") * 3000,
        frame(SETTINGS, 0, 0) * 3000,
        frame(RST, 0, 3, bytes(4)) * 3000,
        frame(DATA, 0, 1) * 3000,
        frame(0xB7, 0, 0, b"unknown") * 3000,
    ],
    ids=["PING", "SETTINGS", "RST of a stream", "DATA", "unknown"],
)
async def test_flood_of_empty_frames_is_tolerated(flood: bytes) -> None:
    async with http2_peer(hold) as server, client(server) as aws:
        stream = await aws.subscribe()
        (peer,) = server.peers
        peer.write(flood)
        await server.requests[0].send(event(2))
        assert await read(stream, 2) == [1, 2]
        assert await read(await aws.subscribe(), 1) == [1]
        assert len(server.peers) == 1


# -- against the rules


def block(*headers: tuple[str, str]) -> bytes:
    return bytes(Encoder().encode(headers, huffman=False))


def answered(*headers: tuple[str, str]) -> bytes:
    """The headers of an answer on stream 3, in as many frames as they need."""
    whole = block(*headers)
    pieces = [whole[at : at + 16_000] for at in range(0, len(whole), 16_000)]
    return b"".join(
        frame(CONTINUATION if at else HEADERS, END_HEADERS if at == len(pieces) - 1 else 0, 3, piece)
        for at, piece in enumerate(pieces)
    )


OK = block((":status", "200"))
LONG = answered((":status", "200"), *((f"x-{count}", "y" * 1000) for count in range(100)))


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        pytest.param(b"HTTP/1.1 500 Oops\r\n\r\n", "a frame of 4740180 bytes", id="HTTP/1.1"),
        pytest.param(
            frame(DATA, 0, 1999, b"abc"), "data of stream 1999, which was never opened", id="data of no stream"
        ),
        pytest.param(frame(DATA, 0, 3, b"abc"), "data of stream 3 before its headers", id="data before headers"),
        pytest.param(frame(DATA, END_STREAM, 3), "violates HTTP/2", id="end before headers"),
        pytest.param(frame(PUSH, END_HEADERS, 1, (2).to_bytes(4, "big") + OK), "pushed", id="push"),
        pytest.param(frame(HEADERS, 0, 3, OK) + frame(CONTINUATION, 0, 3) * 1000, "continuation", id="continuations"),
        pytest.param(frame(HEADERS, 0, 3, OK) + frame(PING, 0, 0, bytes(8)), "header block", id="PING in headers"),
        pytest.param(frame(HEADERS, 0, 3, OK) + frame(DATA, END_STREAM, 1), "header block", id="data in headers"),
        pytest.param(LONG, "header list", id="100 KB of headers"),
        pytest.param(frame(HEADERS, END_HEADERS, 3, b"\xff" * 6), "decoding", id="bad compression"),
        pytest.param(answered((":status", "299"), (":status", "200")), "violates HTTP/2", id="two statuses"),
        pytest.param(answered((":status", "777")), "a response with status '777'", id="status 777"),
        pytest.param(answered((":status", "fine")), "a response with status 'fine'", id="status fine"),
        pytest.param(answered(("server", "x")), ":status", id="no status"),
        pytest.param(answered((":status", "200"), ("content-length", "-1")), "content-length", id="bad length"),
        pytest.param(frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2, "window", id="window overflow"),
        pytest.param(frame(PING, 0, 0, b"short"), "violates HTTP/2", id="short PING"),
    ],
)
async def test_violation_ends_the_connection_with_its_reason(sent: bytes, text: str) -> None:
    async def answer(request: Request) -> None:
        if request.stream_id == 1:
            await hold(request)

    async with http2_peer(answer) as server, client(server) as aws:
        stream = await aws.subscribe()
        assert await read(stream, 1) == [1]
        waiting = asyncio.ensure_future(aws.subscribe())
        await until(lambda: len(server.requests) == 2)
        (peer,) = server.peers
        peer.write(sent)
        assert isinstance(await fault_of(stream, text), ConnectionLost)
        with pytest.raises(ConnectionClosedError, match=text) as caught:
            await waiting
        assert classify(caught.value).verdict is Verdict.RETRY
        await until(peer.gone.is_set)
        (code,) = peer.errors
        assert code != ErrorCodes.NO_ERROR, "the service is told once, with a code"
        assert await read(await aws.subscribe(), 1) == [1]


@pytest.mark.parametrize("greeting", ["settings of garbage", "a bad setting", "no settings"])
async def test_service_that_cannot_speak_http2_is_reported(greeting: str) -> None:
    begins = {
        "settings of garbage": b"\xff" * 200,
        "a bad setting": frame(SETTINGS, 0, 0, bytes([0, SettingCodes.MAX_FRAME_SIZE, 0, 0, 0, 1])),
        "no settings": frame(GOAWAY, 0, 0, bytes(8)),
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begins[greeting])
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with client(f"http://127.0.0.1:{port}") as aws:
        # One that closes the connection at once may be about to restart.
        parts = "the connection was closed" if greeting == "no settings" else "'transport' is 'http2', but .* does not"
        with pytest.raises(Exception, match=parts) as caught:
            await aws.subscribe()
        assert classify(caught.value).verdict is Verdict.RETRY
    listening.close()
    await listening.wait_closed()
