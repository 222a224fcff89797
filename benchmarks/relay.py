"""A process that stands before a server and delays what passes, as a distance would; it does not limit how much passes.

It needs no rights, unlike the delays that the kernel can make.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Final, cast
from urllib.parse import urlsplit

from benchmarks.machine import process_of

_CONNECTIONS: Final = 4096


@contextlib.contextmanager
def delayed(endpoint: str, round_trip: float) -> Iterator[str]:
    """Run a relay.

    Args:
        endpoint: URL of the server.
        round_trip: Seconds that a byte and its answer take, and that TCP's handshake takes before the first byte.

    Yields:
        The URL of the relay.
    """
    parts = urlsplit(endpoint)
    with process_of(_relay, parts.hostname, parts.port, round_trip) as process:
        yield f"{parts.scheme}://{parts.hostname}:{process.recv()}"


def _relay(ready: Connection, host: str, port: int, round_trip: float) -> None:
    asyncio.run(_relaying(ready, host, port, round_trip))


async def _relaying(ready: Connection, host: str, port: int, round_trip: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Client(host, port, round_trip), host, 0, backlog=_CONNECTIONS)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Side(asyncio.Protocol):
    """One end; what arrives is sent to the other one, later."""

    other: _Side

    def __init__(self, delay: float, first: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self._not_before = self._loop.time() + first
        self._transport: asyncio.Transport | None = None
        self._under_way: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._later(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._later(b"")

    def _later(self, data: bytes) -> None:
        self._under_way.append(data)
        self._loop.call_at(max(self._loop.time(), self._not_before) + self._delay, self._pass_on)

    def _pass_on(self) -> None:
        data = self._under_way.popleft()
        transport = self.other._transport
        assert transport is not None
        if data:
            transport.write(data)
        else:
            transport.close()


class _Client(_Side):
    def __init__(self, host: str, port: int, round_trip: float) -> None:
        super().__init__(round_trip / 2, round_trip)
        self.other = _Side(round_trip / 2)
        self.other.other = self
        self._server = host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).pause_reading()
        self._connecting = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        await self._loop.create_connection(lambda: self.other, *self._server)
        assert self._transport is not None
        self._transport.resume_reading()
