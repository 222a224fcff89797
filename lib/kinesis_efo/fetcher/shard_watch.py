"""Lists the shards of the streams now and then, to find ends and children that no event has announced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.streams import Streams

logger = logging.getLogger(__name__)

LIST_SHARDS_SECONDS: Final = 60.0
"""Time between two listings of a stream's shards. A parent's last event usually announces its children earlier."""

LIST_AGAIN_SECONDS: Final = 2.0
"""The same, while an announced child has an unknown parent."""


class ShardWatch:
    """Keeps the lists of shards up to date.

    Args:
        streams: The streams.
        clock: Time.
        listed: Called with the logical name of a stream after each listing.
    """

    def __init__(self, streams: Streams, clock: Clock, listed: Callable[[str], None]) -> None:
        self._streams = streams
        self._clock = clock
        self._listed = listed
        self._outdated = Signal()

    def look_soon(self) -> None:
        """List again soon, if an announced child has an unknown parent."""
        if self._streams.outdated:
            self._outdated.notify()

    async def run(self) -> None:
        """List until cancelled. A failed listing is repeated the next time."""
        while True:
            if self._streams.outdated:
                await self._clock.sleep(LIST_AGAIN_SECONDS)
            else:
                await within(self._clock, LIST_SHARDS_SECONDS, self._outdated.wait())
            for name, stream in self._streams.streams.items():
                try:
                    await stream.refresh()
                except KinesisEfoError as error:
                    logger.warning(
                        "stream %s cannot be listed, trying again in %.0f s: %s", name, LIST_SHARDS_SECONDS, error
                    )
                else:
                    self._listed(name)
