"""One response of HTTP/2. It passes for aiohttp's: aiobotocore and the readers of event streams take either.

The service may send as many bytes as the stream's window has. The window is the memory that the stream may take: it is
opened again when bytes are read, not when they arrive.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from h2.errors import ErrorCodes

from kinesis_efo.http2.facts import HttpFacts

LEAST_WINDOW: Final = 8 << 10
"""Bytes that a stream may send before anything else is known."""

LARGEST_WINDOW: Final = 512 << 10
"""Bytes beyond which a larger window brings no more throughput."""

_CRUMBS: Final = 1024


class WindowOverflow(Exception):
    """The service sent more than the stream's window allows."""

    error_code = ErrorCodes.FLOW_CONTROL_ERROR


class Carrier(Protocol):
    """The connection that carries a response."""

    @property
    def facts(self) -> HttpFacts:
        """What the service said of itself."""
        ...

    def open_window(self, stream_id: int, size: int) -> None:
        """Allow the service so many bytes more of a stream."""
        ...

    def cancel(self, stream_id: int) -> None:
        """End a stream whose rest nobody reads."""
        ...


class Response:
    """One response, from the moment its request is sent.

    Args:
        carrier: The connection.
        stream_id: Its stream there.
        share: Tells how many bytes may be in hand without anybody asking for room.
        silence: Longest time without a byte while somebody reads, seconds.

    Attributes:
        status: The status, once `opened` has returned.
        headers: The headers in lower case, once `opened` has returned.
        content: The response itself, as aiohttp has it.
    """

    def __init__(self, carrier: Carrier, stream_id: int, share: Callable[[], int], silence: float | None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = self
        self.stream_id = stream_id
        self._carrier = carrier
        self._share = share
        self._silence = silence
        self._window = LEAST_WINDOW
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._received = 0
        self._length: int | None = None
        self._ended = False
        self._fault: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.widen()

    @property
    def facts(self) -> HttpFacts:
        """How it is carried."""
        return self._carrier.facts

    # -- for the reader

    async def opened(self) -> None:
        """Wait for the headers.

        Raises:
            ConnectionError: The service reset the stream, or the connection is lost.
            TimeoutError: There was no answer.
        """
        while not self.status:
            if self._ended:
                raise ConnectionAbortedError("the request was given up before its answer")
            await self._more()

    async def readany(self) -> bytes:
        """All bytes that are here, once there are some; none at the end. For as many, the service may send new ones.

        Raises:
            ConnectionError: The service reset the stream, or the connection is lost.
            TimeoutError: Nothing arrived for too long.
            RuntimeError: Another task reads already.
        """
        while not self._chunks and not self._ended:
            await self._more()
        if not self._chunks:
            return b""
        read = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._unread = 0
        self.widen()
        return read

    async def read(self) -> bytes:
        """All bytes up to the end. Whoever is cancelled meanwhile leaves a closed response behind, as with aiohttp's.

        Raises:
            Exception: As `readany`.
        """
        parts = []
        try:
            while part := await self.readany():
                parts.append(part)
        except BaseException:
            self.close()
            raise
        return b"".join(parts)

    def expect(self, size: int) -> None:
        """Let so many bytes come at once: there is room for them.

        Args:
            size: Bytes that are still to come of what was reserved.
        """
        self._widen_to(size)

    def close(self) -> None:
        """Read no more: the service is told to stop. May be called any number of times."""
        if not self.over:
            self._ended = True
            self._carrier.cancel(self.stream_id)
            self._wake()
        self._chunks.clear()
        self._unread = 0

    # -- for the connection

    def begin(self, status: int, headers: dict[str, str]) -> None:
        """Take the headers."""
        self.status, self.headers = status, headers
        if "content-length" in headers:
            self._length = int(headers["content-length"])
        self._wake()

    def arrive(self, piece: memoryview | bytes, padding: int = 0) -> None:
        """Take the next bytes.

        Args:
            piece: The bytes; they are copied.
            padding: Bytes besides them that count as received.

        Raises:
            WindowOverflow: They are more than was allowed.
        """
        size = len(piece)
        if size + padding > self._window:
            raise WindowOverflow(f"{size + padding} bytes where {self._window} were allowed")
        self._window -= size + padding
        if size:
            # A view would keep all of the buffer that it is part of, which other streams write to. Each chunk has its
            # price in memory, however small it is: the window would not bound that of many.
            if self._chunks and len(self._chunks[-1]) + size <= _CRUMBS:
                self._chunks[-1] += bytes(piece)
            else:
                self._chunks.append(bytes(piece))
            self._unread += size
            self._received += size
            self._wake()
        if padding:
            # Nobody reads it: the window would stay shut.
            self.widen()

    def end(self, fault: BaseException | None) -> None:
        """Take the end: there are no more bytes, or an error. What arrived before an error is read before it."""
        if self.over:
            return
        if fault is None and self._length not in (None, self._received):
            fault = ConnectionError(
                f"the answer ended after {self._received} bytes, but its content-length is {self._length}"
            )
        if fault is None:
            self._ended = True
        else:
            self._fault = fault
        self._wake()

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self._ended or self._fault is not None

    # -- helpers

    def widen(self) -> None:
        """Open the window again, once half of it is used up."""
        usual = min(LARGEST_WINDOW, max(LEAST_WINDOW, self._share() // 2))
        if self._window + self._unread <= usual // 2:
            self._widen_to(usual)

    def _widen_to(self, size: int) -> None:
        missing = size - self._window - self._unread
        if missing > 0 and not self.over:
            self._window += missing
            self._carrier.open_window(self.stream_id, missing)

    async def _more(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self._waiter is not None:
            raise RuntimeError("two tasks read one response of HTTP/2; this is a bug")
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
        # Where this process stood still, what arrived meanwhile is read just before the alarm goes off.
        if self._waiter is not None and not self._waiter.done():
            self.end(TimeoutError(f"nothing arrived for {self._silence:g} s"))
            self._carrier.cancel(self.stream_id)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
