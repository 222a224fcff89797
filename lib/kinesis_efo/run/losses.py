"""Detects data loss: shards that were trimmed before they were read, and trimmed records of a micro-batch that Spark repeats."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final

from kinesis_efo.decisions.losses import Facts
from kinesis_efo.errors import (
    AccessRefusedError,
    DataLossError,
    StreamError,
    StreamNotFoundError,
    StreamReplacedError,
)
from kinesis_efo.fetcher.streams import Streams, by_stream
from kinesis_efo.kinesis.faults import LossErrors
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange

logger = logging.getLogger(__name__)

_FATAL: Final = (DataLossError, AccessRefusedError, StreamNotFoundError, StreamReplacedError)


class Losses:
    """Detects data loss of one query, by comparing its offsets with the shards and trim horizons of its streams.

    `is_buffered` returns whether all records of a shard after a position, up to the shard's end, are buffered.
    """

    def __init__(
        self,
        streams: Streams,
        known: Callable[[ShardKey, Position], Facts],
        is_buffered: Callable[[ShardKey, Position], bool],
    ) -> None:
        self._streams = streams
        self._known = known
        self._is_buffered = is_buffered
        self._checked: Collection[ShardKey] = frozenset()
        self._checked_offset: Mapping[ShardKey, Position]
        self._checked_listings = -1
        self._whole = False
        self._gone: defaultdict[str, set[str]] = defaultdict(set)

    async def check(self, offset: Mapping[ShardKey, Position], *, rows: bool) -> bool:
        """Check for lost data if the shards in `offset` have changed, or shards were listed again, since the last check.

        Returns False if a position could not be checked because of a transient error, which is logged. The caller must then repeat the
        check before the query advances, because later positions do not reveal the loss.

        Args:
            rows: Whether the lease rows were read: they may show that an idle shard was read further than `offset`. Without them, only
                new shards that start at `TRIM_HORIZON` are checked.

        Raises:
            DataLossError: Data was lost, and the loss is fatal.
            StreamReplacedError: A stream was deleted and created again.
            AccessRefusedError, StreamNotFoundError: The check is impossible.
        """
        whole, listings = rows and not self._whole, self._streams.listings
        if (
            not whole
            and listings == self._checked_listings
            and (offset is self._checked_offset or offset.keys() == self._checked)
        ):
            self._checked_offset = offset
            return True

        async def check_all(losses: LossErrors) -> None:
            await self._check_shards(offset, losses)
            # Reading does not reveal every loss: a buffer shared with another query may already have skipped the lost records.
            # So check all positions once, and later only new shards.
            added = offset.keys() - self._checked
            new = {key: at for key, at in offset.items() if whole or (key in added and (rows or at == TRIM_HORIZON))}
            await self._check(new, losses)

        if await self._report(check_all):
            self._checked, self._checked_offset, self._checked_listings = frozenset(offset), offset, listings
            self._whole |= rows
            return True
        return not whole and offset.keys() <= frozenset(self._checked)

    async def check_starting(self, reached: Mapping[ShardKey, Position]) -> bool:
        """Check for parent shards that were trimmed unread. All records up to `reached` have been read, so child shards can start.

        Returns False if the check failed with a transient error. Raises the errors of `check`.
        """
        return await self._report(partial(self._check_shards, reached))

    async def check_replay(self, ranges: Iterable[ShardRange], *, repeated: bool = True) -> bool:
        """Check for lost data in ranges of a micro-batch. Set `repeated` if the micro-batch was planned earlier, maybe long ago.

        Returns False if the check failed with a transient error. Raises the errors of `check`.
        """
        return await self._report(
            partial(self._check, {wanted.key: wanted.after for wanted in ranges}, planned=repeated)
        )

    async def _report(self, check: Callable[[LossErrors], Awaitable[None]]) -> bool:
        """Run a check. Raise one error for all fatal losses; log other losses, once per stream. Return False after a transient error."""
        losses = LossErrors()
        try:
            await check(losses)
            losses.raise_if_any()
        except _FATAL:
            raise
        except StreamError as error:
            logger.warning("cannot tell for now whether records were lost, will check again: %s", error)
            return False
        finally:
            for stream in self._streams.streams.values():
                stream.losses.write()
        return True

    async def _check_shards(self, offset: Mapping[ShardKey, Position], losses: LossErrors) -> None:
        for name, positions in by_stream(offset).items():
            stream = self._streams.stream(name)
            for shard in stream.lineage.vanished(positions):
                if self._is_buffered(ShardKey(name, shard), positions[shard]):
                    positions[shard] = SHARD_END  # it was trimmed, but none of its records will be missed
            with losses.collect():
                await stream.check_loss(positions, partial(self._known_in, name), self._gone[name])

    async def _check(
        self, positions: Mapping[ShardKey, Position], losses: LossErrors, *, planned: bool = False
    ) -> None:
        for key, position in positions.items():
            known = self._known(key, position)
            with losses.collect():
                await self._streams.stream(key.stream).check_position(key.shard, position, known, planned=planned)

    def _known_in(self, stream: str, shard: str, position: Position) -> Facts:
        return self._known(ShardKey(stream, shard), position)
