"""Sends a PING on a silent HTTP/2 connection. Closes the connection if it is dead or unused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from kinesis_efo.clock import Clock
from kinesis_efo.http2.response import ConnectionLost

if TYPE_CHECKING:
    from kinesis_efo.http2.connection import Connection

PING_SECONDS: Final = 5.0
"""A PING is sent after this many seconds without a received byte. The other side has the same time to reply."""
IDLE_SECONDS: Final = 15.0
"""Seconds after which a connection without requests is closed."""


class Keepalive:
    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._received_at = self._used_at = clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._keep())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def received(self) -> None:
        """Record that bytes were received."""
        self._received_at = self._clock.monotonic()

    def used(self) -> None:
        """Restart the idle time after a request has ended."""
        self._used_at = self._clock.monotonic()

    async def _keep(self) -> None:
        # Close the connection if watching it fails: nothing would notice when an unwatched connection dies.
        try:
            await self._look_after()
        except Exception as error:
            why = f"watching the connection failed: {type(error).__name__}: {error}"
            self._connection.abort(ConnectionLost(why))

    async def _look_after(self) -> None:
        while True:
            now = self._clock.monotonic()
            quiet = now - self._received_at
            unused = 0.0 if self._connection.in_use else now - self._used_at
            if unused >= IDLE_SECONDS:
                self._connection.close()
                return
            if quiet < PING_SECONDS:
                await self._clock.sleep(min(PING_SECONDS - quiet, max(0.1, IDLE_SECONDS - unused)))
            else:
                await self._ping()

    async def _ping(self) -> None:
        asked = self._clock.monotonic()
        self._connection.ping()
        await self._clock.sleep(PING_SECONDS)
        # Let asyncio read before the check: if this process was suspended, the reply may still be in the socket.
        for _ in range(3):
            await asyncio.sleep(0)
        if self._received_at < asked:
            self._connection.abort(ConnectionLost(f"no answer to a PING for {PING_SECONDS:g} s"))
