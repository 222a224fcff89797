"""The target for the client of HTTP/2: what a service may send on a connection that carries requests, cut anywhere.

The promises: nothing is raised while bytes arrive, readers and requests get documented errors only, a response holds no
more than its window allows, readers get what was sent to them and nothing else, and nothing is left once the connection
is gone.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hpack import Encoder

from kinesis_efo.http2.connection import RECEIVE_BYTES, Connection
from kinesis_efo.http2.response import LEAST_WINDOW, NotHttp2, Response
from tests.support.virtual_time import LoopClock, VirtualTimeLoop

SHARE: Final = 64 << 10
USUAL_WINDOW: Final = max(LEAST_WINDOW, SHARE // 2)
EXPECTED: Final = 100_000
"""Room that one of the readers finds for a large event."""
SILENCE: Final = 35.0
MOST_SENT: Final = 1 << 18
"""Bytes after which a script ends: it is a loop's fault, not a find."""
MOST_CUTS: Final = 200
PIECE_OVERHEAD: Final = 64
"""Bytes that Python takes for a piece of data besides its contents, at most."""
MOST_PIECES: Final = 64
"""Pieces that a response may hold before their overhead has to be in proportion."""

DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
STREAMS: Final = (1, 3, 5, 0, 2, 7, 9, 0x7FFFFFFF)
HEAD: Final = ((":method", "POST"), (":scheme", "https"), (":authority", "kinesis.example"), (":path", "/"))
RESPONSES: Final = (
    ((":status", "200"), ("content-type", "application/vnd.amazon.eventstream")),
    ((":status", "200"), ("content-length", "3000")),
    ((":status", "400"), ("content-length", "0")),
    ((":status", "100"),),
    ((":status", "1000"),),
    (("content-type", "no status"),),
    ((":status", "200"), ("Upper", "case")),
    (("x-amzn-trailer", "a"),),
)


def http2(data: bytes) -> None:
    """What a service sends.

    The first byte says how it begins, and whether the rest is sent as it is or is a script of frames; the second, how it is
    cut.
    """
    how, cut, rest = data[:1] or b"\0", data[1:2] or b"\0", data[2:]
    start = b"" if how[0] & 1 else _frame(SETTINGS, 0, 0, b"\0\3\0\0\0\5")
    said = rest if how[0] & 2 else b"".join(_limited(_script(Bytes(rest))))
    step = max(1 + cut[0] ** 2, len(said) // MOST_CUTS)
    pieces = [start, *(said[at : at + step] for at in range(0, len(said), step))]
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(_converse(pieces, deaf=bool(how[0] & 4), pause=bool(how[0] & 8)))


class Bytes:
    """Input that decisions are taken from; zeros where it ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, size: int) -> bytes:
        """The next bytes, as many as there are."""
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def number(self, size: int = 1) -> int:
        """The next number."""
        return int.from_bytes(self.take(size), "big")


def _script(given: Bytes) -> Iterator[bytes]:
    """Frames that a service might send, the wrong ones among them."""
    encoder = Encoder()
    while given:
        kind, stream = given.number(), STREAMS[given.number() % len(STREAMS)]
        match kind % 16:
            case 0 | 1:
                flags, block = given.number(), encoder.encode(RESPONSES[given.number() % len(RESPONSES)])
                yield _frame(HEADERS, flags & ~(PADDED | 0x20) | (END_HEADERS if kind & 16 else 0), stream, block)
            case 2:
                yield _frame(DATA, 0, stream, _content(given.number(2)))
            case 3:
                yield _frame(DATA, END_STREAM, stream, _content(given.number()))
            case 4:
                # The padding may be longer than the frame, or all of it.
                size, padding = given.number(), given.number()
                content = bytes([padding]) + _content(size) + bytes(padding if kind & 16 else padding // 2)
                yield _frame(DATA, PADDED | (END_STREAM if kind & 32 else 0), stream, content)
            case 5:
                yield from _repeated(_frame(DATA, 0, stream, _content(1 + 64 * given.number())), given)
            case 6:
                yield _frame(SETTINGS, given.number() & ACK, 0, given.take(6 * (given.number() % 4)))
            case 7:
                yield from _repeated(_frame(WINDOW_UPDATE, 0, stream, given.take(4)), given)
            case 8:
                yield from _repeated(_frame(RST_STREAM, 0, stream, struct.pack(">L", given.number() % 16)), given)
            case 9:
                last = STREAMS[given.number() % len(STREAMS)]
                yield _frame(GOAWAY, 0, 0, struct.pack(">LL", last, given.number() % 16) + given.take(kind >> 4))
            case 10:
                promised = struct.pack(">L", given.number())
                yield _frame(PUSH_PROMISE, END_HEADERS, stream, promised + encoder.encode(HEAD))
            case 11:
                yield _frame(HEADERS, 0, stream, given.take(given.number() % 64))
                yield from _repeated(_frame(CONTINUATION, 0, stream, given.take(given.number() % 64)), given)
                yield _frame(CONTINUATION, END_HEADERS, stream, b"")
            case 12:
                yield from _repeated(_frame(PING, given.number() & ACK, 0, bytes(8)), given)
            case 13:
                yield from _repeated(_frame(DATA, 0, stream, b"x"), given)
            case 14:
                yield _frame(given.number(), given.number(), stream, given.take(given.number()))
            case 15:
                yield given.take(given.number())


def _limited(script: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    while size < MOST_SENT and (said := next(script, None)) is not None:
        size += len(said)
        yield said


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 0xFF, kind, flags & 0xFF, stream) + payload


def _repeated(frame: bytes, given: Bytes) -> Iterator[bytes]:
    for _ in range(1 + given.number() ** 2 // 16):
        yield frame


def _content(size: int) -> bytes:
    """Content in which a byte that is lost, or comes twice, is seen."""
    return (bytes(range(251)) * (1 + size // 251))[:size]


@dataclass
class Sent:
    """What a service sent on a stream, by a reading of its own: as simple as can be, of all bytes at once.

    Attributes:
        data: The contents of its DATA frames.
        ends: How much of it was there whenever a frame said that it was the last one.
    """

    data: bytearray = field(default_factory=bytearray)
    ends: set[int] = field(default_factory=set)


def _sent(said: bytes) -> dict[int, Sent]:
    sent: dict[int, Sent] = {}
    at = 0
    while at + 9 <= len(said):
        high, low, kind, flags, number = struct.unpack_from(">HBBBL", said, at)
        stream = sent.setdefault(number & 0x7FFFFFFF, Sent())
        payload = said[at + 9 : at + 9 + (high << 8 | low)]
        at += 9 + (high << 8 | low)
        if kind == DATA:
            stream.data += payload[1 : len(payload) - payload[0]] if flags & PADDED and payload else payload
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            stream.ends.add(len(stream.data))
    return sent


class Wire(asyncio.Transport):
    """A transport in memory. Nobody reads what is written.

    Args:
        deaf: Whether it is never sent, either.
    """

    def __init__(self, protocol: Connection, *, deaf: bool) -> None:
        super().__init__()
        self._protocol = protocol
        self._deaf = deaf
        self._unsent = 0
        self._closing = False

    def write(self, data: Any) -> None:
        """See `asyncio.WriteTransport`."""
        assert not self._closing, "something was written to a connection that is closed"
        self._unsent += len(data) * self._deaf

    def get_write_buffer_size(self) -> int:
        """See `asyncio.WriteTransport`."""
        return self._unsent

    def is_closing(self) -> bool:
        """See `asyncio.BaseTransport`."""
        return self._closing

    def close(self) -> None:
        """See `asyncio.BaseTransport`."""
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close


@dataclass
class Reader:
    """One request, and what came of it.

    Attributes:
        body: What it sends.
        gives_up: Whether it reads no more after the first bytes.
        expects: Whether it finds room for a large event after the first bytes.
        seconds: What it waits after each read.
        response: The response, once it has begun.
        got: What it read.
        ended: Whether the response ended without an error.
    """

    body: bytes
    gives_up: bool = False
    expects: bool = False
    seconds: float = 0.0
    response: Response | None = None
    got: bytearray = field(default_factory=bytearray)
    ended: bool = False

    async def read(self, connection: Connection) -> None:
        """Send the request, and read its response to the end."""
        try:
            self.response = await connection.request(HEAD, self.body, lambda: SHARE, SILENCE)
            while part := await self.response.readany():
                self.got += part
                if self.gives_up:
                    return
                if self.expects:
                    self.response.expect(EXPECTED)
                await asyncio.sleep(self.seconds)
            self.ended = True
        except (ConnectionError, TimeoutError):
            pass
        finally:
            if self.response is not None:
                self.response.close()


async def _converse(pieces: Sequence[bytes], *, deaf: bool, pause: bool) -> None:
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    scratch = bytearray(RECEIVE_BYTES)
    connection = Connection(LoopClock(), lambda _: None, scratch)
    wire = Wire(connection, deaf=deaf)
    connection.connection_made(wire)
    readers = [
        Reader(b"{}"),
        Reader(b"", expects=True),
        Reader(bytes(100_000), seconds=20.0),
        Reader(b"{}", gives_up=True),
    ]
    tasks: list[asyncio.Task[None]] = []
    for piece in pieces:
        if wire.is_closing():
            break
        connection.get_buffer(-1)[: len(piece)] = piece
        connection.buffer_updated(len(piece))
        scratch[: len(piece)] = bytes(len(piece))
        _hold_little(connection)
        while connection.places and len(tasks) < len(readers):
            connection.take_place()
            tasks.append(asyncio.ensure_future(readers[len(tasks)].read(connection)))
        await asyncio.sleep(1.0 if pause else 0.0)
    if not wire.is_closing():
        # Nobody answers PINGs from here on.
        await asyncio.sleep(0.0 if deaf else 60.0)
        connection.connection_lost(None)
    await asyncio.gather(*tasks)
    if connection.ready.done() and (error := connection.ready.exception()) is not None:
        assert isinstance(error, ConnectionError | NotHttp2), error
    assert connection.closed
    assert connection.active == 0
    assert connection.places == 0
    assert not connection.responses
    sent = _sent(b"".join(pieces))
    for reader in readers[: len(tasks)]:
        _compare(reader, sent)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not faults, faults
    assert len(asyncio.all_tasks()) == 1


def _hold_little(connection: Connection) -> None:
    for response in connection.responses.values():
        sizes = [len(chunk) for chunk in response.chunks]
        assert sum(sizes) <= max(USUAL_WINDOW, EXPECTED)
        assert len(sizes) <= MOST_PIECES or PIECE_OVERHEAD * len(sizes) <= USUAL_WINDOW, f"{len(sizes)} pieces"


def _compare(reader: Reader, sent: dict[int, Sent]) -> None:
    if reader.response is None:
        return
    stream = sent.get(reader.response.stream_id, Sent())
    assert stream.data.startswith(reader.got)
    assert not reader.ended or len(reader.got) in stream.ends
