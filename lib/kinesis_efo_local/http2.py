"""HTTP/2 on one connection: `h2` implements the protocol; this module reads and writes the socket and answers the requests.

No HTTP server library is used, because none supports fault injection or back-pressure from clients that read slowly.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, Event, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import Frame, GoAwayFrame
from multidict import CIMultiDict

from .http import Answer, Answerer, Incoming, cut
from .subscribe import Push, Wire

logger = logging.getLogger(__name__)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of an HTTP/2 connection that was not upgraded from HTTP/1.1."""

_STREAM_WINDOW: Final = 1 << 20
"""Flow-control window of each request in bytes, the same as in the real service."""
_CONNECTION_WINDOW: Final = 16 << 20
_SLICE: Final = 256 << 10
"""Maximum bytes of one response that are sent before another response gets its turn."""
_ANY_STREAM: Final = (1 << 31) - 1
_FRAME_HEAD_BYTES: Final = 9
_NO_CONTENT: Final = frozenset({204, 304})


class Http2(asyncio.Protocol):
    """Serves one HTTP/2 connection.

    Rejects more than `max_concurrent_streams` open requests, and bodies of more than `max_body` bytes.
    The callbacks in `when_lost` are called when the connection ends, with the error that ended it, if any.
    """

    def __init__(self, answer: Answerer, max_concurrent_streams: int, max_body: int) -> None:
        self.when_lost: list[Callable[[BaseException | None], None]] = []
        self._answer = answer
        self._max_concurrent_streams = max_concurrent_streams
        self._max_body = max_body
        self._h2 = _Connection(H2Configuration(client_side=False, header_encoding=False))
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._senders: deque[_Stream] = deque()
        """Streams with unsent data, in the order in which they may send."""
        self._next_pump: asyncio.Handle | None = None
        self._paused = False
        self._frozen = 0
        self._last_stream: int | None = None
        """ID of the last stream to process. Set once either side has sent GOAWAY; the connection then closes when no stream is open."""
        self._initiated = False
        self._frame_head = b""
        self._frame_rest = len(PREFACE)

    def upgrade(self, settings: str, request: Incoming) -> None:
        """Continue an HTTP/1.1 connection as HTTP/2: its request becomes the first stream. Must be called before `connection_made`.

        `settings` is the client's `HTTP2-Settings` header; raises ValueError if it is invalid.
        """
        try:
            # Clients send the header without base64 padding, but decoding requires padding.
            self._initiate(base64.b64decode(settings + "=" * (-len(settings) % 4), altchars=b"-_", validate=True))
        except (HyperframeError, ProtocolError) as wrong:
            raise ValueError(str(wrong)) from None
        self._streams[1] = _Stream(self, 1, request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the server's settings, and serve an upgraded request. Called by asyncio, like the other methods of `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._initiated:
            self._initiate(None)
        self._flush()
        for stream in self._streams.values():
            self._serve(stream)

    def data_received(self, data: bytes) -> None:
        """Process data from the client."""
        try:
            for event in self._h2.receive_data(data):
                self._handle(event)
        except ProtocolError:
            # h2 has queued a GOAWAY frame with the error; `_end` sends it.
            self._end()
            return
        # Check frame lengths here: h2 checks them only once a frame is complete, and a bogus header may announce a huge frame.
        if self._announces_too_much(data):
            self._h2.close_connection(ErrorCodes.FRAME_SIZE_ERROR)
            self._end()
            return
        self._pump()

    def _announces_too_much(self, data: bytes) -> bool:
        while data:
            if self._frame_rest:
                passed = min(self._frame_rest, len(data))
                self._frame_rest -= passed
                data = data[passed:]
                continue
            missing = _FRAME_HEAD_BYTES - len(self._frame_head)
            self._frame_head, data = self._frame_head + data[:missing], data[missing:]
            length = int.from_bytes(self._frame_head[:3], "big")
            if length > self._h2.max_inbound_frame_size and len(self._frame_head) >= 3:
                return True
            if len(self._frame_head) == _FRAME_HEAD_BYTES:
                self._frame_head, self._frame_rest = b"", length
        return False

    def pause_writing(self) -> None:
        """Stop writing: the socket's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """Continue writing: the socket's buffer has space again."""
        self._paused = False
        # Deferred, because asyncio cannot handle a write that fails within this callback.
        self._pump_soon()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End all requests, and call the callbacks in `when_lost`. Called by asyncio when the connection is closed."""
        self._transport = None
        self._give_up()
        for call in self.when_lost:
            call(exc)

    def close(self) -> None:
        """Abandon all requests, and close the connection once all data written so far is sent."""
        self._give_up()
        if self._transport is not None:
            self._transport.close()

    async def abort(self) -> None:
        """Close the connection at once, and wait until its requests have ended."""
        self._give_up()
        if self._transport is not None:
            self._transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _end(self) -> None:
        self._flush()
        self.close()

    def _initiate(self, upgraded: bytes | None) -> None:
        self._initiated = True
        connection, limit = self._h2, {SettingCodes.MAX_CONCURRENT_STREAMS: self._max_concurrent_streams}
        window = {
            SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: connection.DEFAULT_MAX_HEADER_LIST_SIZE,
        }
        connection.local_settings = Settings(client=False, initial_values={**window, **limit})
        if upgraded is None:
            connection.initiate_connection()
        else:
            connection.initiate_upgrade_connection(base64.urlsafe_b64encode(upgraded))
        # Hide the stream limit from h2, which would close the connection if a client exceeds it. `_open` rejects only the excess stream.
        connection.local_settings = Settings(client=False, initial_values=window)
        connection.increment_flow_control_window(_CONNECTION_WINDOW - connection.inbound_flow_control_window)

    def _handle(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._open(event.stream_id, event.headers)
            case DataReceived():
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if (stream := self._streams.get(event.stream_id)) is not None:
                    self._receive(stream, event.data, more=event.stream_ended is None)
            case StreamEnded():
                if (stream := self._streams.get(event.stream_id)) is not None:
                    self._serve(stream)
            case StreamReset():
                if (stream := self._streams.get(event.stream_id)) is not None:
                    self._forget(stream)
            case ConnectionTerminated(error_code=ErrorCodes.NO_ERROR):
                if self._last_stream is None:
                    self._last_stream = _ANY_STREAM
                self._close_if_idle()
            case ConnectionTerminated():
                self.close()

    def _open(self, stream_id: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self._last_stream is not None and stream_id > self._last_stream:
            return
        if len(self._streams) >= self._max_concurrent_streams:
            # The client may have reset the stream in the meantime.
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._streams[stream_id] = _Stream(self, stream_id, _request(headers))

    def _receive(self, stream: _Stream, data: bytes, *, more: bool) -> None:
        stream.body += data
        if len(stream.body) > self._max_body:
            with suppress(StreamClosedError):
                self._h2.send_headers(stream.id, [(":status", "413")], end_stream=True)
                if more:
                    self._h2.reset_stream(stream.id, ErrorCodes.NO_ERROR)
            self._forget(stream)

    def _serve(self, stream: _Stream) -> None:
        stream.task = asyncio.create_task(self._respond(stream))
        self._tasks.add(stream.task)
        stream.task.add_done_callback(self._tasks.discard)

    async def _respond(self, stream: _Stream) -> None:
        try:
            answer = await self._answer(replace(stream.request, body=bytes(stream.body)))
            if isinstance(answer.body, Push):
                await self._push(stream, answer, answer.body)
            else:
                await self._whole(stream, answer, answer.body)
        except Exception:
            logger.exception("the local AWS could not answer %s %s", stream.request.method, stream.request.path)
            if stream.id in self._streams:
                self.reset_stream(stream, ErrorCodes.INTERNAL_ERROR)
        finally:
            self._forget(stream)

    async def _whole(self, stream: _Stream, answer: Answer, body: bytes) -> None:
        bodiless = stream.request.method == "HEAD" or answer.status in _NO_CONTENT
        length = [] if bodiless else [("content-length", str(len(body)))]
        self._send_headers(stream, answer, length, end=bodiless or not body)
        if not bodiless and body:
            await stream.write(body, end=True)
        self._flush()

    async def _push(self, stream: _Stream, answer: Answer, push: Push) -> None:
        try:
            self._send_headers(stream, answer, ())
            self._flush()
            if await push.send(stream):
                self._h2.end_stream(stream.id)
                self._flush()
        except TimeoutError:
            self.reset_stream(stream, ErrorCodes.CANCEL)
        finally:
            push.close()

    def _send_headers(
        self, stream: _Stream, answer: Answer, more: Iterable[tuple[str, str]], *, end: bool = False
    ) -> None:
        self._h2.send_headers(stream.id, [(":status", str(answer.status)), *answer.headers, *more], end_stream=end)

    def _forget(self, stream: _Stream) -> None:
        """Free the slot of a stream that has ended or was reset."""
        self._streams.pop(stream.id, None)
        self.take_back(stream)
        if stream.task is not None and stream.task is not asyncio.current_task():
            stream.task.cancel()
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._last_stream is not None and not self._streams:
            self.close()

    def _give_up(self, above: int = 0, but: _Stream | None = None) -> None:
        for stream in tuple(self._streams.values()):
            if stream.id > above and stream is not but:
                self._forget(stream)

    def queue(self, stream: _Stream) -> None:
        """Queue a stream with unsent data. The data is sent immediately if possible, otherwise when it is the stream's turn."""
        self._senders.append(stream)
        self._pump()

    def take_back(self, stream: _Stream) -> None:
        """Discard the unsent data of a stream."""
        if stream in self._senders:
            self._senders.remove(stream)

    def _pump(self) -> None:
        """Send a slice of each stream's data, if flow control and the socket allow it. Later event loop iterations send more."""
        sent = False
        for _ in range(len(self._senders)):
            if not self._may_write():
                break
            stream = self._senders.popleft()
            room = self._h2.local_flow_control_window(stream.id)
            if room > 0:
                self._send(stream, min(room, _SLICE))
                sent = True
            if stream.unsent:
                self._senders.append(stream)
            else:
                stream.all_sent()
        self._flush()
        if sent and self._senders:
            self._pump_soon()

    def _pump_soon(self) -> None:
        if self._next_pump is None:
            self._next_pump = asyncio.get_running_loop().call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._next_pump = None
        self._pump()

    def _send(self, stream: _Stream, size: int) -> None:
        part, stream.unsent = stream.unsent[:size], stream.unsent[size:]
        step = self._h2.max_outbound_frame_size
        for start in range(0, len(part), step):
            last = stream.ends and not stream.unsent and start + step >= len(part)
            self._h2.send_data(stream.id, part[start : start + step], end_stream=last)
        self._flush()

    def _may_write(self) -> bool:
        transport = self._transport
        return transport is not None and not (self._paused or self._frozen or transport.is_closing())

    def _flush(self) -> None:
        if self._transport is not None and not self._frozen and not self._transport.is_closing():
            data = self._h2.data_to_send()
            if data:
                self._transport.write(data)

    def reset_stream(self, stream: _Stream, error_code: int) -> None:
        """End a stream with RST_STREAM."""
        self._h2.reset_stream(stream.id, error_code)
        self._flush()

    def go_away(self, stream: _Stream, error_code: int, *, grace: bool) -> None:
        """Send GOAWAY; without `grace`, this stream and all later ones end without a response."""
        last = self._h2.highest_inbound_stream_id if grace else max(0, stream.id - 2)
        # A second GOAWAY must not contain a higher last stream ID than the first.
        self._last_stream = last if self._last_stream is None else min(last, self._last_stream)
        self._flush()
        # Bypass h2, which would close the connection after sending GOAWAY.
        frame = GoAwayFrame(0, last_stream_id=self._last_stream, error_code=error_code)
        if self._transport is not None:
            self._transport.write(frame.serialize())
        self._give_up(above=self._last_stream, but=stream)

    def cut(self, *, reset: bool) -> None:
        """Close the connection, which ends all of its streams."""
        if self._transport is not None:
            cut(self._transport, reset=reset)
        self._give_up()

    async def freeze(self, seconds: float) -> None:
        """Stop reading and writing for some seconds."""
        self._frozen += 1
        if self._transport is not None:
            self._transport.pause_reading()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._frozen -= 1
            if self._transport is not None and not self._frozen:
                self._transport.resume_reading()
                self._pump()


class _Connection(H2Connection):
    """An h2 connection that stays open after a client's GOAWAY: the JavaScript SDK sends GOAWAY while it still reads a subscription."""

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        event = ConnectionTerminated()
        event.error_code = frame.error_code
        return [], [event]


class _Stream(Wire):
    """One HTTP/2 stream: a request and its response.

    `body` is the request body received so far; `task` handles the request once it is complete. `unsent` is response data that is
    still to be sent; `ends` is whether the response ends with this data.
    """

    def __init__(self, connection: Http2, stream_id: int, request: Incoming) -> None:
        self._connection = connection
        self.id = stream_id
        self.request = request
        self.body = bytearray(request.body)
        self.unsent = memoryview(b"")
        self.ends = False
        self.task: asyncio.Task[None] | None = None
        self._sent: asyncio.Future[None] | None = None

    async def write(self, data: bytes, *, end: bool = False) -> None:
        """Send bytes, and wait until flow control and the socket have accepted them."""
        if not data:
            return
        self.unsent, self.ends = memoryview(data), end
        self._connection.queue(self)
        if self.unsent:
            self._sent = asyncio.get_running_loop().create_future()
            try:
                await self._sent
            finally:
                self._sent = None
                self._connection.take_back(self)

    def all_sent(self) -> None:
        """Wake the `write` call that waits for its data to be sent."""
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(None)

    def cut(self, *, reset: bool) -> None:
        self._connection.cut(reset=reset)

    def reset_stream(self, error_code: int) -> None:
        self._connection.reset_stream(self, error_code)

    def go_away(self, error_code: int, *, grace: bool) -> None:
        self._connection.go_away(self, error_code, grace=grace)

    async def freeze(self, seconds: float) -> None:
        await self._connection.freeze(seconds)


def _request(headers: Iterable[tuple[bytes, bytes]]) -> Incoming:
    pseudo: dict[str, str] = {}
    others: CIMultiDict[str] = CIMultiDict()
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("utf-8", "surrogateescape"), raw_value.decode("utf-8", "surrogateescape")
        if name.startswith(":"):
            pseudo[name] = value
        else:
            others.add(name, value)
    if ":authority" in pseudo:
        others["Host"] = pseudo[":authority"]
    return Incoming(pseudo[":method"], pseudo.get(":path", ""), others, b"")
