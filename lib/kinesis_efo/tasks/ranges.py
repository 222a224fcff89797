"""Reads ranges in a task from the fetchers of their shards, even if a shard moves to another fetcher in the meantime."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from typing import Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.errors import FetcherRefusedError, FetcherUnreachableError, NotFetchedHereError
from kinesis_efo.fetcher.work import PlannerClient, WhereRequest
from kinesis_efo.positions import ShardRange
from kinesis_efo.records.events import position_after
from kinesis_efo.tasks.client import FetcherClient, RangePayloads

logger = logging.getLogger(__name__)

NOBODY_SECONDS: Final = 20.0
"""If the run has had no fetcher for this many seconds, a task fails, to free its core for a fetcher."""

_WAIT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.5
_WARN_SECONDS: Final = 30.0


class RangeReader:
    """Reads the ranges of one task. Fails after `patience` seconds without progress.

    Args:
        planner: The address of the planner, which returns the current fetcher of each shard.
        query: The name of the task's query in its run.
    """

    def __init__(
        self,
        secret: str,
        planner: FetcherAddress,
        patience: float,
        *,
        query: str = "",
        fetcher_at: Callable[[FetcherAddress, str], AbstractContextManager[FetcherClient]] = FetcherClient,
        planner_at: Callable[[FetcherAddress, str], AbstractContextManager[PlannerClient]] = PlannerClient,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._secret = secret
        self._planner = planner
        self._patience = patience
        self._query = query
        self._fetcher_at = fetcher_at
        self._planner_at = planner_at
        self._now = now
        self._sleep = sleep
        self._nobody_since: float | None = None
        self._left: list[ShardRange] = []
        self._error: FetcherUnreachableError | FetcherRefusedError | None = None
        self._doubts = False

    def read(self, ranges: Sequence[ShardRange], fetcher: FetcherAddress | None) -> Iterator[RangePayloads]:
        """Yield the raw event payloads that cover the given ranges, in order. A range may be yielded in several parts, as smaller ranges.

        `fetcher` served all ranges when they were planned. If it is None or fails, the planner returns the current fetchers.
        Raises FetcherUnreachableError or FetcherRefusedError if a range could not be read from any fetcher in time.
        """
        self._left = list(ranges)
        progress_at = warned_at = self._now()
        while self._left:
            before = self._left[0], len(self._left)
            if fetcher is not None:
                yield from self._from(fetcher, self._left, [])
            else:
                for address, group, rest in self._found():
                    yield from self._from(address, group, rest)
            if not self._left:
                return
            now = self._now()
            if (self._left[0], len(self._left)) != before:
                progress_at = warned_at = now
            elif now - progress_at >= self._patience:
                raise self._given_up(now - progress_at)
            elif now - warned_at >= _WARN_SECONDS:
                warned_at = now
                logger.warning("%s", self._given_up(now - progress_at))
            if fetcher is None:
                self._sleep(_PAUSE_SECONDS)
            fetcher = None

    def _found(self) -> Iterator[tuple[FetcherAddress, list[ShardRange], list[ShardRange]]]:
        """Request fetchers from the planner. If the first range has a fetcher, yield it, the leading ranges it serves, and the rest."""
        with self._planner_at(self._planner, self._secret) as planner:
            reply = planner.where(WhereRequest.of(self._left, _WAIT_SECONDS, self._query, doubts=self._doubts))
        owners = reply.fetchers
        if reply.there:
            self._nobody_since = None
        elif self._nobody_since is None:
            self._nobody_since = self._now()
        elif self._now() - self._nobody_since >= NOBODY_SECONDS:
            raise FetcherUnreachableError(
                f"no fetcher has been running for {self._now() - self._nobody_since:.0f} s. This task ends to free its core for a fetcher; "
                "Spark's UI shows the fetchers' job, 'kinesis-efo fetchers'"
            )
        if (address := owners[0]) is not None:
            number = len(list(takewhile(lambda owner: owner == address, owners)))
            yield address, self._left[:number], self._left[number:]

    def _from(
        self, fetcher: FetcherAddress, group: Sequence[ShardRange], rest: Sequence[ShardRange]
    ) -> Iterator[RangePayloads]:
        self._error, self._doubts = None, True
        try:
            with self._fetcher_at(fetcher, self._secret) as client:
                for wanted, payloads in client.get(group):
                    self._left = [*group[list(group).index(wanted) :], *rest]
                    yield RangePayloads(wanted, self._tracked(wanted, payloads))
                    if self._error is not None:
                        return
                    self._doubts = False
                    del self._left[0]  # the caller has read the whole range
            self._left = list(rest)
        except (FetcherUnreachableError, FetcherRefusedError) as error:
            # If no ranges are left, the call failed after the last record: ignore the error.
            if self._left:
                self._record(error)

    def _tracked(self, wanted: ShardRange, payloads: Iterator[memoryview]) -> Iterator[memoryview]:
        """Yield payloads. On an error, record it instead of raising it, and shorten the range to its part after the last payload."""
        last: memoryview | None = None
        try:
            for payload in payloads:
                yield payload
                last = payload
        except (FetcherUnreachableError, FetcherRefusedError) as error:
            self._record(error)
            if last is not None:
                self._left[0] = ShardRange(wanted.key, position_after(bytes(last)), wanted.through, wanted.last)
                if self._left[0].is_over:
                    del self._left[0]

    def _record(self, error: FetcherUnreachableError | FetcherRefusedError) -> None:
        self._error = error
        if isinstance(error, NotFetchedHereError):
            self._doubts = False
            logger.debug("%s", error)
            return
        logger.warning("shard %s: %s; requesting its current fetcher from the planner", self._left[0].key, error)

    def _given_up(self, seconds: float) -> FetcherUnreachableError:
        reason = str(self._error) if self._error is not None else "no fetcher reads it"
        error = FetcherUnreachableError(f"shard {self._left[0].key} could not be read for {seconds:.0f} s: {reason}")
        error.__cause__ = self._error
        return error
