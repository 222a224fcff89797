"""A transport that opens its client at its first call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kinesis_efo.kinesis.transport import EventStream, Quota, Transport
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position


class OpenedLater:
    """Opens a transport at its first call; implements `Transport`.

    Args:
        opening: Opens it. Called again if it failed or was cancelled.
    """

    def __init__(self, opening: Callable[[], Awaitable[Transport]]) -> None:
        self._opening = opening
        self._lock = asyncio.Lock()
        self._opened: Transport | None = None

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position, room: Quota) -> EventStream:
        return await (await self._transport()).subscribe(stream, shard_id, position, room)

    async def latest_tip(
        self, stream: StreamRef, shard_id: str, position: Position, opened: Callable[[], None]
    ) -> Position:
        return await (await self._transport()).latest_tip(stream, shard_id, position, opened)

    async def _transport(self) -> Transport:
        # Several shards may call this at the same time; they must share one client, and with it one pace per shard.
        async with self._lock:
            if self._opened is None:
                self._opened = await self._opening()
            return self._opened
