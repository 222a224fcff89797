"""Watches the fetchers of other processes: which are silent, which have ended, and whether there is any."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import Clock
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.planner.assignments import TICK_SECONDS, Assignments
from kinesis_efo.planner.members import MissingFetchers

_PROBE_SECONDS: Final = 1.5
"""A fetcher asks at least every second. One that is late is either paused or cut off, or dead: then its port is closed."""


class FetcherWatch:
    """Gives up those that are dead, and shares their shards out.

    Args:
        assignments: The fetchers.
        missing: Follows for how long there has been none.
        gone: Tells whether nobody listens at an address any more, for certain.
        clock: Time.
    """

    def __init__(
        self,
        assignments: Assignments,
        missing: MissingFetchers,
        gone: Callable[[FetcherAddress], Coroutine[Any, Any, bool]],
        clock: Clock,
    ) -> None:
        self._assignments = assignments
        self._missing = missing
        self._gone = gone
        self._clock = clock

    async def run(self, failure: Failure) -> None:
        """Watch until cancelled.

        Args:
            failure: Keeps the error if no fetcher has come for too long.
        """
        assignments = self._assignments
        while True:
            await self._clock.sleep(TICK_SECONDS)
            ended = await self._ended()
            # Probing takes time, in which some have asked and others have been silent for too long.
            late = {member.name for member in assignments.silent(_PROBE_SECONDS)}
            dead = {member.name for member in assignments.silent()} | (ended & late)
            for name in dead:
                assignments.lose(name)
            if assignments.measure() or dead:
                assignments.share()
            if not len(assignments) and (error := self._missing.look(self._clock.monotonic())) is not None:
                failure.set(error)

    async def _ended(self) -> set[str]:
        """The fetchers whose process has ended, of those that are late. All are probed at once: each may take its time."""
        late = self._assignments.silent(_PROBE_SECONDS)
        gone = await all_of(*(self._gone(member.address) for member in late))
        return {member.name for member, is_gone in zip(late, gone, strict=True) if is_gone}
