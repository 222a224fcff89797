"""The server of prepared events over HTTP/2, with Kinesis' limit of streams per connection.

`h2` reads what clients send; DATA frames go past it, cut from a file in memory. Flow control is honoured.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Final, cast

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from benchmarks.canned import IDLE_SECONDS, INITIAL_RESPONSE, CannedStream, idle_event, listed_shards
from benchmarks.certificate import server_context

MOST_STREAMS: Final = 5
_FRAME_BYTES: Final = 16 << 10
_FRAMES_AT_ONCE: Final = 8
"""Frames of one stream in a row, where others wait, too."""
_UNSENT: Final = 1 << 20
_HEADER: Final = struct.Struct(">HBBBL")


def serve(stream: CannedStream, shards: int, ready: Callable[[int], None], *, tls: bool) -> None:
    """Serve for ever.

    Args:
        stream: The events of every shard, without a chunked encoding.
        shards: The number of shards.
        ready: Called with the port.
        tls: Whether to speak TLS.
    """
    asyncio.run(_serve(stream, listed_shards(shards), ready, tls=tls))


async def _serve(stream: CannedStream, listed: bytes, ready: Callable[[int], None], *, tls: bool) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(stream, listed),
        "127.0.0.1",
        0,
        ssl=server_context(["h2"]) if tls else None,
        backlog=1024,
    )
    ready(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _LastingConnection(H2Connection):
    """h2's, which would end with a client's GOAWAY. The SDK for JavaScript sends one while it still reads its subscriptions."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        return [], []


class _Connection(asyncio.Protocol):
    def __init__(self, stream: CannedStream, listed: bytes) -> None:
        self._stream = stream
        self._listed = listed
        self._h2 = _LastingConnection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._h2.local_settings = Settings(
            client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS}
        )
        self._requests: dict[int, tuple[dict[str, str], bytearray]] = {}
        self._left: dict[int, memoryview] = {}
        self._lasting: set[int] = set()
        self._writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT)
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lasting.clear()
        self._left.clear()
        self._writable = False

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._push()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                self._handle(event)
        except H2Error:
            self._transport.close()
        self._flush()
        self._push()

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=number, headers=headers):
                self._requests[number] = dict(cast("list[tuple[str, str]]", headers)), bytearray()
            case h2.events.DataReceived(stream_id=number, data=data, flow_controlled_length=size):
                self._requests[number][1].extend(data)
                self._h2.acknowledge_received_data(size, number)
            case h2.events.StreamEnded(stream_id=number):
                self._answer(number, *self._requests.pop(number))
            case h2.events.StreamReset(stream_id=number):
                self._left.pop(number, None)
                self._lasting.discard(number)

    def _answer(self, number: int, headers: dict[str, str], body: bytearray) -> None:
        match headers["x-amz-target"].rpartition(".")[2]:
            case "ListShards":
                self._h2.send_headers(number, [(":status", "200"), ("content-type", "application/x-amz-json-1.1")])
                self._left[number] = memoryview(self._listed)
            case "SubscribeToShard":
                start = int(json.loads(body)["StartingPosition"].get("SequenceNumber", 0))
                kind = [(":status", "200"), ("content-type", "application/vnd.amazon.eventstream")]
                self._h2.send_headers(number, kind)
                self._h2.send_data(number, INITIAL_RESPONSE)
                self._lasting.add(number)
                self._idle_soon(number, self._stream.last + 1)
                self._left[number] = self._stream.view[self._stream.offset_after(start) :]

    def _flush(self) -> None:
        if said := self._h2.data_to_send():
            self._transport.write(said)

    def _push(self) -> None:
        moved = True
        while moved and self._writable:
            moved = False
            for number in list(self._left):
                moved = self._write(number) or moved

    def _write(self, number: int) -> bool:
        """Send a part of a stream, as far as its window goes; says whether there was one."""
        left = self._left.get(number)
        if not left:
            return False
        part = left[: min(_FRAMES_AT_ONCE * _FRAME_BYTES, self._h2.local_flow_control_window(number))]
        if not part:
            return False
        frames: list[bytes | memoryview] = []
        for start in range(0, len(part), _FRAME_BYTES):
            payload = part[start : start + _FRAME_BYTES]
            frames += _HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, 0, 0, number), payload
        # In one piece: TLS would make a record of each header.
        self._transport.write(b"".join(frames))
        self._h2.outbound_flow_control_window -= len(part)
        self._h2.streams[number].outbound_flow_control_window -= len(part)
        self._left[number] = left = left[len(part) :]
        if not left and number not in self._lasting:
            self._h2.end_stream(number)
            self._flush()
        return True

    def _idle_soon(self, number: int, last: int) -> None:
        asyncio.get_running_loop().call_later(IDLE_SECONDS, self._idle, number, last)

    def _idle(self, number: int, last: int) -> None:
        if number not in self._lasting:
            return
        if not self._left[number]:
            event = idle_event(last)
            if self._h2.local_flow_control_window(number) >= len(event):
                self._h2.send_data(number, event)
                self._flush()
        self._idle_soon(number, last + 1)
