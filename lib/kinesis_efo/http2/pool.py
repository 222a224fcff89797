"""A pool of HTTP/2 connections to one service. It opens as many connections as the requests need, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kinesis_efo.http2.connection import Connection
from kinesis_efo.http2.response import ConnectionLost

_MOST_OPENING: Final = 16
"""Maximum number of connections that are opened at the same time: opening one takes several round trips, and CPU time for TLS."""
_PARTING_SECONDS: Final = 1.0
"""When the pool is closed, connections that the service has not closed after this many seconds are aborted."""

Changed = Callable[[Connection], None]


class Pool:
    """Assigns requests to the connections to one service.

    The first connection is opened alone, because its SETTINGS show how many requests a connection accepts. If this fails, all
    waiting requests fail; the caller retries them.

    Args:
        dial: Opens a connection. Its argument is the function that the connection must call on each change (`changed` of `Connection`).
        most: Maximum number of connections.
    """

    def __init__(self, dial: Callable[[Changed], Awaitable[Connection]], most: int) -> None:
        self._dial = dial
        self._most = most
        self._open: set[Connection] = set()
        self._sockets: set[Connection] = set()
        # `_free` and `_waiting` serve as sets, but are dictionaries to preserve the order.
        self._free: dict[Connection, None] = {}
        self._waiting: dict[asyncio.Future[Connection], None] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._places: int | None = None
        self._closed = False

    @property
    def connections(self) -> frozenset[Connection]:
        return frozenset(self._open)

    async def place(self) -> Connection:
        """Reserve a stream slot on a connection. The caller must use the slot for a request, or release it with `give_place`. Raises the
        error of `dial`, or `ConnectionError` if the pool was closed or the service does not accept requests."""
        if self._closed:
            raise ConnectionLost("the client was closed")
        place: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self._waiting[place] = None
        self._serve()
        try:
            return await place
        except asyncio.CancelledError:
            self._waiting.pop(place, None)
            if place.done() and not place.cancelled() and place.exception() is None:
                place.result().give_place()
            raise

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are closed. Requests that wait for a slot fail."""
        self._closed = True
        while self._waiting:
            if not (place := self._next()).done():
                place.set_exception(ConnectionLost("the client was closed"))
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in self.connections:
            connection.close()
        if self._sockets:
            parting = [asyncio.ensure_future(connection.gone.wait()) for connection in self._sockets]
            await asyncio.wait(parting, timeout=_PARTING_SECONDS)
            for connection in tuple(self._sockets):
                connection.abort(ConnectionLost("the client was closed"))
            await asyncio.gather(*parting)

    def _serve(self) -> None:
        """Assign free stream slots to waiting requests, and open connections if there are too few slots."""
        if self._closed:
            return
        while self._waiting and (connection := self._with_place()) is not None:
            place = self._next()
            if not place.done():
                connection.take_place()
                place.set_result(connection)
        allowed = 1 if self._places is None else min(_MOST_OPENING, self._most - len(self._open))
        while len(self._opening) < allowed and len(self._waiting) > len(self._opening) * (self._places or 1):
            task = asyncio.ensure_future(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opened)

    def _next(self) -> asyncio.Future[Connection]:
        place = next(iter(self._waiting))
        del self._waiting[place]
        return place

    def _with_place(self) -> Connection | None:
        while self._free:
            connection = next(iter(self._free))
            if connection.places:
                return connection
            del self._free[connection]
        return None

    async def _open_one(self) -> None:
        try:
            connection = await self._dial(self._changed)
        except Exception as error:
            self._fail(error)
            return
        self._open.add(connection)
        self._sockets.add(connection)
        # If the new connection is unusable, fail the requests: another connection would most likely be unusable, too.
        if connection.closed:
            self._fail(ConnectionLost("the service closed the connection before it accepted a request"))
        elif not connection.most_streams:
            connection.close()
            self._fail(ConnectionLost("the service accepts no requests: its SETTINGS_MAX_CONCURRENT_STREAMS is 0"))
        else:
            self._places = connection.most_streams
        self._changed(connection)

    def _fail(self, error: Exception) -> None:
        # Fail as many requests as the connection would have accepted; further requests wait for the next connection.
        for _ in range(min(len(self._waiting), self._places or len(self._waiting))):
            if not (place := self._next()).done():
                place.set_exception(error)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._serve()

    def _changed(self, connection: Connection) -> None:
        if connection.gone.is_set():
            self._sockets.discard(connection)
        if connection not in self._open:
            return  # the connection is still being opened, or was already removed
        if connection.closed:
            self._open.discard(connection)
            self._free.pop(connection, None)
            if not self._open:
                self._places = None
        elif connection.places:
            self._free[connection] = None
        self._serve()
