"""The fetchers of a run in other processes, and the one that takes their place in this process if they do not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.remote import FetcherPlan, fetch
from kinesis_efo.kinesis.recovery import Limits


class RemoteFetchers(Protocol):
    """The fetchers of a run in other processes."""

    optional: bool
    """Whether a fetcher may run here if they do not come."""

    def problem(self) -> str:
        """What keeps them from coming up, as far as it is known; empty if nothing is."""

    def stop(self) -> None:
        """See that nothing is left of them."""


StartFetchers = Callable[[FetcherPlan], RemoteFetchers]


class FetchersElsewhere:
    """Starts and ends the fetchers of other processes.

    Args:
        begin: Starts them.
        listening: Where a fetcher of this process listens for tasks.
        limits: Kinesis' times.
        failed: Told why the fetcher of this process ended.
    """

    def __init__(
        self, begin: StartFetchers, listening: Listening, limits: Limits, failed: Callable[[KinesisEfoError], object]
    ) -> None:
        self._begin = begin
        self._listening = listening
        self._limits = limits
        self._failed = failed
        self._plan: FetcherPlan | None = None
        self._remote: RemoteFetchers | None = None
        self._own: asyncio.Task[None] | None = None

    def start(self, plan: FetcherPlan) -> None:
        """Start them.

        Args:
            plan: What each of them is told.
        """
        self._plan = plan
        self._remote = self._begin(plan)

    def fetch_here(self) -> bool:
        """Fill one more place than the run has, in this process; False if the others have to come."""
        if self._plan is None or self._remote is None or not self._remote.optional:
            return False
        place = self._plan.options.fetchers or 0
        self._own = asyncio.create_task(fetch(self._plan, place, self._listening, self._limits))
        self._own.add_done_callback(self._note_own)
        return True

    def problem(self) -> str:
        """What keeps them from coming up, as far as it is known; empty if nothing is."""
        return self._remote.problem() if self._remote is not None else ""

    def stop(self) -> None:
        """See that nothing is left of those in other processes."""
        if self._remote is not None:
            self._remote.stop()

    async def end_own(self) -> None:
        """End the fetcher of this process, which the planner has told so."""
        if self._own is not None:
            self._own.cancel()
            await asyncio.gather(self._own, return_exceptions=True)

    def _note_own(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, KinesisEfoError):
                error = FetcherError(f"the fetcher beside the planner: {error!r}")
            self._failed(error)
