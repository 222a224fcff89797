"""Looks after a connection of HTTP/2: asks for a sign of life if none came, and closes the connection if nobody needs it."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from kinesis_efo.clock import Clock
from kinesis_efo.http2.faults import ConnectionLost

PING_SECONDS: Final = 5.0
"""After this long without a byte, the other side is asked for one; it has as long again to answer."""
IDLE_SECONDS: Final = 15.0
"""A connection without requests is closed after this long."""


class Kept(Protocol):
    """A connection that is looked after."""

    @property
    def in_use(self) -> bool:
        """Whether a request is under way, or the connection is only being made."""

    def ping(self) -> None:
        """Ask for a sign of life."""

    def close(self) -> None:
        """Close the connection in peace."""

    def abort(self, why: Exception) -> None:
        """Drop the connection at once."""


class Keeping:
    """Looks after one connection.

    Args:
        kept: The connection.
        clock: Time.
    """

    def __init__(self, kept: Kept, clock: Clock) -> None:
        self._kept = kept
        self._clock = clock
        self._heard_at = self._used_at = clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.ensure_future(self._keep())

    def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()

    def heard(self) -> None:
        """Take note that bytes came."""
        self._heard_at = self._clock.monotonic()

    def used(self) -> None:
        """Take note that a request has ended."""
        self._used_at = self._clock.monotonic()

    async def _keep(self) -> None:
        # If this fails, the connection goes: nobody would notice that it is dead.
        try:
            await self._look_after()
        except Exception as error:
            why = f"the connection could not be looked after: {type(error).__name__}: {error}"
            self._kept.abort(ConnectionLost(why))

    async def _look_after(self) -> None:
        while True:
            now = self._clock.monotonic()
            quiet = now - self._heard_at
            unused = 0.0 if self._kept.in_use else now - self._used_at
            if unused >= IDLE_SECONDS:
                self._kept.close()
                return
            if quiet < PING_SECONDS:
                await self._clock.sleep(min(PING_SECONDS - quiet, max(0.1, IDLE_SECONDS - unused)))
            else:
                await self._ping()

    async def _ping(self) -> None:
        asked = self._clock.monotonic()
        self._kept.ping()
        await self._clock.sleep(PING_SECONDS)
        # If this process stood still, the answer may be here already, unread.
        for _ in range(3):
            await asyncio.sleep(0)
        if self._heard_at < asked:
            self._kept.abort(ConnectionLost(f"no answer to a PING for {PING_SECONDS:g} s"))
