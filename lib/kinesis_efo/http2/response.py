"""One HTTP/2 response, and its errors. Implements the methods of aiohttp's responses that aiobotocore and this library use.

The flow-control window of the response's stream bounds its memory, because the window is reopened only when bytes are read.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes

if TYPE_CHECKING:
    from kinesis_efo.http2.connection import Connection

LEAST_WINDOW: Final = 8 << 10
"""Minimum size of a stream's flow-control window in bytes, and the size with which each stream begins."""

LARGEST_WINDOW: Final = 512 << 10
"""Maximum size of a stream's flow-control window in bytes; a larger window would not increase throughput."""

_CRUMBS: Final = 1024


class NotHttp2(Exception):
    """The other side does not speak HTTP/2."""


class NotProcessed(ConnectionError):
    """The service did not process the request, so the request may be sent again on another connection."""


class ConnectionLost(ConnectionError):
    """The connection was lost, so all of its requests fail."""


class WindowOverflow(Exception):
    """The service sent more bytes than the stream's window allows."""

    error_code = ErrorCodes.FLOW_CONTROL_ERROR


@dataclass(frozen=True, slots=True)
class HttpFacts:
    """The protocol versions of a response, and the service's HTTP/2 settings (None over HTTP/1.1 or if the service has not sent them)."""

    version: str
    tls: str | None = None  # For example `TLSv1.3`; None without TLS
    most_streams: int | None = None  # Maximum concurrent requests on one connection
    initial_window: int | None = None  # Bytes that a client may send on a new stream without a window update
    largest_frame: int | None = None  # Maximum size in bytes of a frame that the service accepts
    header_list: int | None = None  # Maximum size in bytes of all headers that the service accepts in one request


def tls_version(security: ssl.SSLObject | None) -> str | None:
    """Return the TLS version of a connection; None without TLS."""
    return security.version() if security is not None else None


class Response:
    """One response, created before its request is sent. `status` and `headers` (names in lower case) are set once `opened` has returned.

    Args:
        share: Returns how many bytes may arrive before buffer space is reserved for them. The window is usually half as large.
        silence: A read fails after this many seconds without a byte; None: no limit.
    """

    def __init__(self, connection: Connection, stream_id: int, share: Callable[[], int], silence: float | None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = self  # aiohttp's responses have their read methods in `content`
        self.stream_id = stream_id
        self._connection = connection
        self._share = share
        self._silence = silence
        self._window = LEAST_WINDOW
        self.chunks: deque[bytes] = deque()
        self._unread = 0
        self._received = 0
        self._length: int | None = None
        self._ended = False
        self._fault: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.widen()

    @property
    def facts(self) -> HttpFacts:
        return self._connection.facts

    # -- methods for the code that reads the response

    async def opened(self) -> None:
        """Wait for the headers. Raises `ConnectionError` if the service resets the stream or the connection is lost, and
        `TimeoutError` after `silence` seconds."""
        while not self.status:
            if self._ended:
                raise ConnectionAbortedError("the request was cancelled before its response")
            await self._more()

    async def readany(self) -> bytes:
        """Wait for bytes, and return all that have arrived; empty at the end of the response. Raises the same errors as `opened`."""
        while not self.chunks and not self._ended:
            await self._more()
        if not self.chunks:
            return b""
        read = self.chunks.popleft() if len(self.chunks) == 1 else b"".join(self.chunks)
        self.chunks.clear()
        self._unread = 0
        self.widen()
        return read

    async def read(self) -> bytes:
        """Read all bytes up to the end. Raises the same errors as `readany`. On failure, the response is closed, as in aiohttp."""
        parts = []
        try:
            while part := await self.readany():
                parts.append(part)
        except BaseException:
            self.close()
            raise
        return b"".join(parts)

    def expect(self, size: int) -> None:
        """Open the window for `size` unread bytes, such as the rest of a large event for which buffer space was reserved."""
        missing = size - self._window - self._unread
        if missing > 0 and not self.over:
            self._window += missing
            self._connection.open_window(self.stream_id, missing)

    def close(self) -> None:
        """Stop reading and reset the stream. May be called several times."""
        if not self.over:
            self._ended = True
            self._connection.cancel(self.stream_id)
            self._wake()
        self.chunks.clear()
        self._unread = 0

    # -- methods that the connection calls

    def begin(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers
        if "content-length" in headers:
            self._length = int(headers["content-length"])
        self._wake()

    def arrive(self, piece: memoryview | bytes, padding: int = 0) -> None:
        """Copy the next bytes of the body. Raises `WindowOverflow` if the bytes and the padding together exceed the window."""
        size = len(piece)
        if size + padding > self._window:
            raise WindowOverflow(f"{size + padding} bytes where {self._window} were allowed")
        self._window -= size + padding
        if size:
            # Copy the bytes: the receive buffer is reused. Join small chunks: each has a memory overhead that the window does not limit.
            if self.chunks and len(self.chunks[-1]) + size <= _CRUMBS:
                self.chunks[-1] += bytes(piece)
            else:
                self.chunks.append(bytes(piece))
            self._unread += size
            self._received += size
            self._wake()
        if padding:
            # Reopen the window for the padding now, because padding is never read.
            self.widen()

    def end(self, fault: BaseException | None) -> None:
        """End the response, or fail it with `fault`. Bytes that have already arrived can still be read before the error is raised."""
        if self.over:
            return
        if fault is None and self._length not in (None, self._received):
            fault = ConnectionError(
                f"the response ended after {self._received} bytes, but its content-length is {self._length}"
            )
        if fault is None:
            self._ended = True
        else:
            self._fault = fault
        self._wake()

    @property
    def over(self) -> bool:
        """Whether the response has ended or failed."""
        return self._ended or self._fault is not None

    def widen(self) -> None:
        """Reopen the window once half of it is used up."""
        usual = min(LARGEST_WINDOW, max(LEAST_WINDOW, self._share() // 2))
        if self._window + self._unread <= usual // 2:
            self.expect(usual)

    async def _more(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._waiter is not None:
            raise RuntimeError("two tasks read one HTTP/2 response; this is a bug")
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        alarm = loop.call_later(self._silence, self._fall_silent) if self._silence else None
        try:
            await waiter
        finally:
            self._waiter = None
            if alarm is not None:
                alarm.cancel()

    def _fall_silent(self) -> None:
        # Do not time out if bytes have arrived. After a suspension of the process, asyncio reads them before it calls this late timer.
        if self._waiter is not None and not self._waiter.done():
            self.end(TimeoutError(f"nothing arrived for {self._silence:g} s"))
            self._connection.cancel(self.stream_id)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
