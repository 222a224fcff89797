"""Finds the streams in which tasks may drop records of KPL aggregates whose keys belong to other shards (option `deaggregate`).

If Kinesis has ever distributed a stream's records over its shards regardless of keys, no record may be dropped: the producer does not
resend it to another shard. DescribeStreamSummary only returns the current distribution, so lease rows store whether this ever occurred.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.leases.run import RunLease
from kinesis_efo.records.distribution import Distribution, lenient

logger = logging.getLogger(__name__)

ASK_SECONDS: Final = 5.0
"""Minimum seconds between two DescribeStreamSummary calls for a stream. AWS allows 20 such calls per second for the whole account."""


class Strictness:
    """Decides whether tasks may drop KPL aggregates with records of other shards: only if Kinesis distributes records by their keys.

    `leases.notes` stores the streams that were ever distributed regardless of keys. Waits for a lease for at most `patience` seconds.
    """

    def __init__(self, streams: Streams, leases: RunLease, patience: float, clock: Clock) -> None:
        self._streams = streams
        self._leases = leases
        self._patience = patience
        self._clock = clock
        self._asked: dict[str, tuple[float, Distribution]] = {}
        self._warned: set[tuple[str, Distribution]] = set()

    async def of(self, names: Collection[str]) -> frozenset[str]:
        """Return the given streams in which aggregated records may be dropped. Waits for the leases; raises `LeaseError` on timeout."""
        await self._leases.wait_held(names, self._patience)
        strict = await asyncio.gather(*(self._is_strict(name) for name in names))
        return frozenset(name for name, is_strict in zip(names, strict, strict=True) if is_strict)

    async def _is_strict(self, name: str) -> bool:
        if name not in self._leases.notes.distributed:
            distribution = await self._distribution(name)
            if distribution is Distribution.KEYED:
                return True
            if distribution is Distribution.UNKNOWN:
                self._warn(name, distribution)
                return False
            self._leases.notes.distributed.add(name)
        self._warn(name, Distribution.AUTO)
        return False

    async def _distribution(self, name: str) -> Distribution:
        asked_at, known = self._asked.get(name, (-ASK_SECONDS, Distribution.UNKNOWN))
        if self._clock.monotonic() - asked_at < ASK_SECONDS:
            return known
        # Retry the first call: its response decides which rows a repeated micro-batch has, so it must not depend on transient errors.
        told = await self._streams.stream(name).distribution(patient=name not in self._asked)
        if told is Distribution.UNKNOWN:
            told = known  # the call has failed: use the last response
        self._asked[name] = self._clock.monotonic(), told
        return told

    def _warn(self, name: str, distribution: Distribution) -> None:
        if (name, distribution) not in self._warned:
            self._warned.add((name, distribution))
            logger.warning("%s", lenient(name, distribution))
