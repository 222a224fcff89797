"""One HTTP/2 connection: many concurrent requests, each on its own stream.

The `h2` library handles most frames. This package handles DATA frames, for which `h2` needs four times as much CPU time, and GOAWAY frames,
after which `h2` would end streams that may continue. Therefore, it also handles flow control and checks the content-length.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import Frame, GoAwayFrame, HeadersFrame, WindowUpdateFrame

from kinesis_efo.clock import Clock
from kinesis_efo.http2.frames import GOAWAY, HEADER_BYTES, FrameSplitter, MalformedFrame
from kinesis_efo.http2.response import (
    LEAST_WINDOW,
    ConnectionLost,
    HttpFacts,
    NotHttp2,
    NotProcessed,
    Response,
    WindowOverflow,
    tls_version,
)

logger = logging.getLogger(__name__)

MOST_STREAMS: Final = 32
"""Maximum concurrent requests on one connection, even if the service allows more: if the connection is lost, all of them fail."""

RECEIVE_BYTES: Final = 256 << 10
"""Size of the receive buffer in bytes. The connections of an event loop can share one: a connection copies received bytes at once."""


PING_SECONDS: Final = 5.0
"""A PING is sent after this many seconds without a received byte. The service must reply within the same time."""
IDLE_SECONDS: Final = 15.0
"""Seconds after which a connection without requests is closed."""
_MOST_UNSENT: Final = 1 << 20
_LARGEST_FRAME: Final = 16 << 10
_LONGEST_HEADERS: Final = 64 << 10
# Flow-control window of a connection: so large that unread data of one stream cannot block the others. Each stream has its own window.
_CONNECTION_WINDOW: Final = 1 << 30


class Connection(asyncio.BufferedProtocol):
    """An HTTP/2 connection to a service, as an asyncio protocol.

    Args:
        changed: Called with this connection when it can accept another request, or has stopped accepting requests.
        scratch: The receive buffer, of `RECEIVE_BYTES`. The connections of one event loop can share it.
    """

    def __init__(self, clock: Clock, changed: Callable[[Connection], None], scratch: bytearray) -> None:
        # Completes when the service's first SETTINGS arrive, or fails if the connection fails first (`NotHttp2` if it is not HTTP/2)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.active = 0  # Number of reserved slots: requests in progress or about to be sent
        self._changed = changed
        self._scratch = memoryview(scratch)
        self._transport: asyncio.Transport | None = None
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: LEAST_WINDOW,
                SettingCodes.MAX_FRAME_SIZE: _LARGEST_FRAME,
                SettingCodes.MAX_HEADER_LIST_SIZE: _LONGEST_HEADERS,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW)
        self._splitter = FrameSplitter(self, _LARGEST_FRAME)
        self.responses: dict[int, Response] = {}
        self._unreturned = 0
        self._ceiling = MOST_STREAMS
        self._draining = False
        self._lost: Exception | None = None
        self._outbox = _Outbox(self._h2, self.abort)
        self._clock = clock
        self._received_at = self._used_at = clock.monotonic()
        self._watch: asyncio.Task[None] | None = None
        self._hanging_up: asyncio.TimerHandle | None = None
        self.gone = asyncio.Event()  # Set when the socket is closed

    @property
    def places(self) -> int:
        """Number of requests that can begin now, each in a free stream slot."""
        return 0 if self.closed else max(0, self.most_streams - self.active)

    @property
    def most_streams(self) -> int:
        """Maximum concurrent requests: the service's limit, at most `MOST_STREAMS`; fewer after the service has refused a request."""
        return min(self._ceiling, self._h2.remote_settings.max_concurrent_streams)

    @property
    def closed(self) -> bool:
        """Whether this connection has stopped accepting requests."""
        return self._draining or self._lost is not None

    @property
    def facts(self) -> HttpFacts:
        """The versions of HTTP and TLS, and the service's HTTP/2 settings."""
        said = self._h2.remote_settings
        return HttpFacts(
            version="HTTP/2",
            tls=tls_version(self._transport.get_extra_info("ssl_object") if self._transport else None),
            most_streams=said.get(SettingCodes.MAX_CONCURRENT_STREAMS),
            initial_window=said.initial_window_size,
            largest_frame=said.max_frame_size,
            header_list=said.get(SettingCodes.MAX_HEADER_LIST_SIZE),
        )

    def take_place(self) -> None:
        """Reserve a stream slot for a request."""
        self.active += 1

    def give_place(self) -> None:
        """Release a reserved slot, after its request has ended or if no request was sent."""
        self.active -= 1
        self._used_at = self._clock.monotonic()
        self._close_if_done()

    async def request(
        self, headers: Sequence[tuple[str, str]], body: bytes, share: Callable[[], int], silence: float | None
    ) -> Response:
        """Send a request in a slot reserved by `take_place`. Returns once the response's headers have arrived.

        `headers` begins with the pseudo-headers (names with a colon). For `share` and `silence`, see `Response`. Raises the same errors as
        `Response.opened`, and `NotProcessed` if the request was not sent or the service refused it without processing it.
        """
        response: Response | None = None
        try:
            if self.closed:
                raise NotProcessed("the connection was closed before the request was sent")
            try:
                stream_id = self._h2.get_next_available_stream_id()
                self._h2.send_headers(stream_id, headers, end_stream=not body)
                response = self.responses[stream_id] = Response(self, stream_id, share, silence)
            except H2Error as wrong:
                raise NotProcessed(f"the connection takes no more requests: {wrong!r}") from wrong
            await self._outbox.send(response, body)
            await response.opened()
        except BaseException:
            if response is None:
                self.give_place()
            else:
                response.close()
            raise
        return response

    def open_window(self, stream_id: int, size: int) -> None:
        """Allow the service to send `size` more bytes of a stream (a WINDOW_UPDATE frame). Stream 0 is the whole connection."""
        self._outbox.open_window(stream_id, size)

    def cancel(self, stream_id: int) -> None:
        """Reset a stream whose remaining bytes are not needed."""
        self._forget(stream_id)
        self._outbox.flush()

    def close(self) -> None:
        """Send GOAWAY and close the connection. Reads in progress fail."""
        if self._lost is None:
            self._h2.close_connection()
            self._hang_up(ConnectionLost("the connection was closed"))

    def abort(self, why: Exception) -> None:
        self._lose(why)
        # Check `gone`: before Python 3.11.5, aborting a TLS transport that is already closed raises an error.
        if self._transport is not None and not self.gone.is_set():
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._lost is not None:
            self._transport.abort()
            return
        security = transport.get_extra_info("ssl_object")
        if security is not None and security.selected_alpn_protocol() != "h2":
            return  # the TLS handshake did not choose HTTP/2; `dial` checks this too, and raises an error
        self._outbox.open(self._transport)
        self._watch = asyncio.ensure_future(self._keep())

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._received_at = self._clock.monotonic()
        if self._lost is not None:
            return
        self._outbox.holding = True
        try:
            self._splitter.feed(self._scratch[:nbytes])
        except (MalformedFrame, WindowOverflow, H2Error, HyperframeError, ValueError) as wrong:
            self._break(wrong, bytes(self._scratch[: min(nbytes, 60)]))
        finally:
            self._outbox.holding = False
        self._outbox.flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        self.gone.set()
        why = f"the connection was lost: {exc!r}" if exc else "the connection was closed by the other side"
        self._lose(ConnectionLost(why))
        self._changed(self)

    def data(self, stream_id: int, piece: memoryview, padding: int) -> None:
        """Process the next bytes of a stream. `piece` is valid only during the call. The `padding` bytes also use up the window."""
        response = self.responses.get(stream_id)
        if response is None:
            if stream_id > self._h2.highest_outbound_stream_id:
                raise MalformedFrame(f"data of stream {stream_id}, which was never opened")
        elif not response.status:
            raise MalformedFrame(f"data of stream {stream_id} before its headers")
        else:
            response.arrive(piece, padding)
        self._unreturned += len(piece) + padding
        if self._unreturned > _CONNECTION_WINDOW // 4:
            self.open_window(0, self._unreturned)
            self._unreturned = 0

    def ended(self, stream_id: int) -> None:
        """Process the end of a stream after its last DATA frame."""
        if stream_id in self.responses:
            # Also end the stream in `h2`, where it still counts as open. Use trailers, because `h2` then skips its content-length check.
            self._feed(HeadersFrame(stream_id, flags=["END_HEADERS", "END_STREAM"]).serialize())

    def frame(self, kind: int, frame: bytes) -> None:
        """Process a complete frame that is not a DATA frame, including its header."""
        if kind == GOAWAY:
            self._go_away(frame)
        else:
            self._feed(frame)

    def _feed(self, frame: bytes) -> None:
        for event in self._h2.receive_data(frame):
            self._handle(event)

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived(stream_id=stream_id, headers=headers):
                self._begin(stream_id, cast("Any", headers))
            case h2.events.StreamEnded(stream_id=stream_id):
                self._end(stream_id, None)
            case h2.events.StreamReset(stream_id=stream_id, error_code=code):
                why = f"the service reset the stream: {_name(code)}"
                if code == ErrorCodes.REFUSED_STREAM:
                    self._refused(stream_id, NotProcessed(why))
                else:
                    self._end(stream_id, ConnectionResetError(why))
            case h2.events.RemoteSettingsChanged():
                self._ceiling = MOST_STREAMS
                if not self.ready.done():
                    self.ready.set_result(None)
                self._outbox.room.set()
                self._changed(self)
            case h2.events.WindowUpdated():
                self._outbox.room.set()

    def _begin(self, stream_id: int, headers: Sequence[tuple[str, str]]) -> None:
        response = self.responses.get(stream_id)
        if response is None:
            return
        found = dict(headers)
        status = found.pop(":status", "")
        if not status.isdecimal() or not 200 <= int(status) <= 599:
            raise MalformedFrame(f"a response with status {status!r}")
        response.begin(int(status), found)

    def _refused(self, stream_id: int, why: NotProcessed) -> None:
        if stream_id in self.responses:
            # Lower the limit to the number of other requests in progress: the refused request must be retried on another connection.
            self._ceiling = len(self.responses) - 1
            self._draining = self._draining or not self._ceiling
            self._end(stream_id, why)

    def _end(self, stream_id: int, fault: Exception | None) -> None:
        response = self.responses.get(stream_id)
        if response is not None:
            response.end(fault)
            self._forget(stream_id)

    def _forget(self, stream_id: int) -> None:
        if self.responses.pop(stream_id, None) is not None:
            with suppress(H2Error):
                # Reset a stream that is still open on this side: the service may have responded before the whole request was sent.
                self._h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            self._outbox.room.set()
            self.give_place()

    def _go_away(self, raw: bytes) -> None:
        frame, _ = Frame.parse_frame_header(memoryview(raw)[:HEADER_BYTES])
        frame.parse_body(memoryview(raw)[HEADER_BYTES:])
        said = cast("GoAwayFrame", frame)
        why = _name(said.error_code)
        logger.debug("the service closes a connection: %s %r", why, said.additional_data[:200])
        self._draining = True
        for stream_id in [each for each in self.responses if each > said.last_stream_id]:
            self._end(stream_id, NotProcessed(f"the service closes the connection: {why}"))
        self._close_if_done()

    async def _keep(self) -> None:
        """Send a PING when nothing arrives. Close a connection that does not reply, or that is unused for `IDLE_SECONDS`."""
        # If this task fails, close the connection: nothing else detects a dead connection.
        try:
            await self._look_after()
        except Exception as error:
            self.abort(ConnectionLost(f"watching the connection failed: {type(error).__name__}: {error}"))

    async def _look_after(self) -> None:
        while True:
            now = self._clock.monotonic()
            quiet = now - self._received_at
            unused = 0.0 if self.active or not self.ready.done() else now - self._used_at
            if unused >= IDLE_SECONDS:
                self.close()
                return
            if quiet < PING_SECONDS:
                await self._clock.sleep(min(PING_SECONDS - quiet, max(0.1, IDLE_SECONDS - unused)))
            else:
                await self._ping()

    async def _ping(self) -> None:
        asked = self._clock.monotonic()
        self._h2.ping(b"still up")
        self._outbox.flush()
        await self._clock.sleep(PING_SECONDS)
        # Let asyncio read before the check: if this process was suspended, the reply may still be in the socket.
        for _ in range(3):
            await asyncio.sleep(0)
        if self._received_at < asked:
            self.abort(ConnectionLost(f"no answer to a PING for {PING_SECONDS:g} s"))

    def _close_if_done(self) -> None:
        """Close the connection if it has stopped accepting requests and all requests have ended; otherwise call `changed`."""
        if self._draining and not self.active:
            self.close()
        else:
            self._changed(self)

    def _break(self, wrong: Exception, bytes_read: bytes) -> None:
        what = f"the other side violates HTTP/2: {str(wrong) or type(wrong).__name__}"
        self._never_ready(NotHttp2(f"{what}; it says {bytes_read!r}"))
        if not isinstance(wrong, H2Error):
            # Queue a GOAWAY. For an `H2Error`, `h2` has already queued one.
            self._h2.close_connection(getattr(wrong, "error_code", ErrorCodes.PROTOCOL_ERROR))
        self._hang_up(ConnectionLost(what))

    def _hang_up(self, why: ConnectionLost) -> None:
        """Close the connection once the GOAWAY has been sent, at the latest after `PING_SECONDS`."""
        self._outbox.holding = False
        self._outbox.flush()
        self._lose(why)
        if self._transport is not None:
            self._transport.close()
            self._hanging_up = self._hanging_up or asyncio.get_running_loop().call_later(
                PING_SECONDS, self._transport.abort
            )

    def _lose(self, why: Exception) -> None:
        if self._lost is not None:
            return
        self._lost = why
        self._never_ready(why)
        for stream_id in list(self.responses):
            # Create a separate exception for each response: raising a shared one would mix the tracebacks.
            self._end(stream_id, ConnectionLost(str(why)))
        self._outbox.close()
        if self._watch is not None:
            self._watch.cancel()
        self._changed(self)

    def _never_ready(self, why: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(why)
            # Retrieve the exception, so that asyncio does not log it if `ready` is not awaited.
            self.ready.exception()


class _Outbox:
    """The sending side of one connection: collects bytes from `h2` and window updates, and writes them together.

    Attributes:
        room: Set when waiting requests must check again: the flow-control window may allow more bytes, or a request may have ended.
        holding: True while received frames are processed, so that all replies are sent together.

    Calls `abort` if the service does not read what is sent to it.
    """

    def __init__(self, connection: H2Connection, abort: Callable[[Exception], None]) -> None:
        self.room: Final = asyncio.Event()
        self.holding = False
        self._h2 = connection
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._unsent = bytearray()

    def open(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.flush()

    def close(self) -> None:
        self._transport = None
        self.room.set()

    async def send(self, response: Response, body: bytes) -> None:
        """Send the collected bytes and a request's body, as the window allows. Stops early if the response has ended."""
        view = memoryview(body)
        while view and not response.over:
            self.room.clear()
            most = min(self._h2.local_flow_control_window(response.stream_id), self._h2.max_outbound_frame_size)
            if most <= 0:
                self.flush()
                await self.room.wait()
                continue
            self._h2.send_data(response.stream_id, bytes(view[:most]), end_stream=most >= len(view))
            view = view[most:]
        self.flush()

    def open_window(self, stream_id: int, size: int) -> None:
        """Queue a WINDOW_UPDATE, which allows the service to send `size` more bytes of a stream."""
        # Collect the bytes from `h2` first: the headers that open the stream must precede its window update.
        self._unsent += self._h2.data_to_send()
        self._unsent += WindowUpdateFrame(stream_id, window_increment=size).serialize()
        # Delay the flush to the event loop's next iteration: several readers often open their windows in the same iteration.
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the bytes collected so far, unless `holding`."""
        self._flushing = False
        transport = self._transport
        if self.holding or transport is None:
            return
        self._unsent += self._h2.data_to_send()
        if self._unsent:
            transport.write(bytes(self._unsent))
            self._unsent.clear()
            if transport.get_write_buffer_size() > _MOST_UNSENT:
                self._abort(ConnectionLost("the service does not read what is sent to it"))


def _name(code: int | ErrorCodes | None) -> str:
    try:
        return ErrorCodes(cast("int", code)).name
    except ValueError:
        return f"error {code}"
