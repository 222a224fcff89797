"""Finds data loss: shards that expired before they were read, and ranges of a repeated micro-batch that Kinesis no longer has."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kinesis_efo.errors import (
    AccessRefusedError,
    DataLossError,
    StreamError,
    StreamNotFoundError,
    StreamReplacedError,
)
from kinesis_efo.fetcher.streams import Streams, by_stream
from kinesis_efo.positions import TRIM_HORIZON, Position, ShardKey, ShardRange

logger = logging.getLogger(__name__)


class Losses:
    """Compares the offsets of one query with the shards that Kinesis lists."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._checked: frozenset[ShardKey] = frozenset()
        self._checked_offset: Mapping[ShardKey, Position]
        self._checked_listings = -1

    async def check(self, offset: Mapping[ShardKey, Position]) -> None:
        """Look for lost shards, if the offset has other shards than at the last check, or the streams were listed since.

        Raises DataLossError if a shard is lost and losses fail the query, StreamReplacedError if a stream was deleted and created again,
        and AccessRefusedError or StreamNotFoundError if the check is not possible. Errors that may pass are only logged.
        """
        listings = self._streams.listings
        if listings == self._checked_listings and (offset is self._checked_offset or offset.keys() == self._checked):
            self._checked_offset = offset
            return
        for name, positions in by_stream(offset).items():
            try:
                await self._streams.stream(name).check_loss(positions, resumed=not self._checked)
            except (DataLossError, AccessRefusedError, StreamNotFoundError, StreamReplacedError):
                raise
            except StreamError as error:
                logger.warning("stream %s: cannot tell whether shards were lost, trying again: %s", name, error)
                return
        self._checked, self._checked_offset, self._checked_listings = frozenset(offset), offset, listings

    async def check_replay(self, begin: Mapping[ShardKey, Position], ranges: Iterable[ShardRange]) -> None:
        """Look for lost data in ranges from the offset `begin` on, which an earlier run may have planned long ago. Raises like `check`."""
        for wanted in ranges:
            if wanted.after != TRIM_HORIZON:
                continue  # the subscription checks this range, because its position has a time
            stream, shard = wanted.key
            positions = {key.shard: position for key, position in begin.items() if key.stream == stream}
            try:
                await self._streams.stream(stream).check_replay(shard, wanted.through, positions)
            except (DataLossError, AccessRefusedError, StreamNotFoundError):
                raise
            except StreamError as error:
                logger.warning("shard %s: cannot tell whether records were lost: %s", wanted.key, error)
