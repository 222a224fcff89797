"""Follows the runs of an application: finds the runs in the lease table, and polls their status. Does not change anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.clock import Clock
from kinesis_efo.errors import KinesisEfoError
from kinesis_efo.fetcher.status import RunStatus
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.operate.live import RunReplies, ask
from kinesis_efo_tools.operate.pulse import LagCause, Pulse, View

READ_AGAIN_SECONDS: Final = 10.0
"""Seconds between two scans of the lease table. A scan costs money, because it reads a row for each shard."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of an application's runs at one moment. All times are in epoch seconds by this machine's clock.

    Attributes:
        at: The time of the observation.
        runs: The runs' rows in the lease table, by stream.
        view: The figures of the runs' last reply; None before the first reply.
        said: The time of the runs' last reply; None before the first reply.
        trouble: The error that prevents newer figures; empty if there is none.
        events: Recent events with their times, newest last.
    """

    at: float
    runs: Mapping[str, Lease]
    view: View | None
    said: float | None
    trouble: str
    events: tuple[tuple[float, str], ...] = ()

    @property
    def owners(self) -> list[str]:
        """The owners of the runs' leases, in readable form."""
        return sorted({readable(row.owner) for row in self.runs.values() if row.owner is not None})


class Following:
    """Follows the runs of one application.

    `find` returns the runs' rows in the lease table, by stream. `question` requests the status from the owners of these rows.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Mapping[str, Lease]]],
        clock: Clock,
        question: Callable[[Mapping[str, Lease]], Awaitable[RunReplies]] = ask,
    ) -> None:
        self._find = find
        self._clock = clock
        self._question = question
        self._pulse = Pulse()
        self._runs: Mapping[str, Lease] = {}
        self._owners: frozenset[str] = frozenset()
        self._view: View | None = None
        self._said: float | None = None
        self._trouble = ""
        self._unowned = ""
        self._unanswered = self._paused = False
        self._read_at: float | None = None

    async def look(self) -> Observation:
        """Observe the runs once.

        Raises an error if the lease table cannot be read the first time. Later errors are not raised, but returned in `trouble`.
        """
        trouble = await self._read()
        cause = LagCause.NO_RUN if self._unowned else None
        if not self._unowned:
            # Request the status even if the table cannot be read: the rows from the last successful scan contain the run's address.
            trouble = "; ".join(filter(None, (trouble, await self._ask())))
            cause = LagCause.NO_REPLY if self._unanswered else LagCause.PAUSED if self._paused else None
        now = self._clock.time()
        if trouble != self._trouble:
            self._trouble = trouble
            self._pulse.note(now, trouble or "the run answers again")
        view = self._view
        if view is not None and self._said is not None and cause is not None:
            view = view.aged(max(0.0, now - self._said), cause)
        return Observation(now, self._runs, view, self._said, trouble, self._pulse.events)

    async def _read(self) -> str:
        now = self._clock.monotonic()
        if self._read_at is not None and now - self._read_at < READ_AGAIN_SECONDS:
            return self._unowned
        try:
            self._runs = await self._find()
        except (KinesisEfoError, ClientError, BotoCoreError, OSError) as error:
            if self._read_at is None:
                raise
            return f"the lease table cannot be read: {error}"
        self._read_at = now
        owners = frozenset(row.owner for row in self._runs.values() if row.owner is not None)
        self._unowned = "" if owners else "no run holds the lease"
        if not owners:
            return self._unowned
        if owners != self._owners:
            names = ", ".join(sorted(map(readable, owners)))
            self._pulse.begin(self._clock.time(), f"{names} {'reads' if len(owners) == 1 else 'read'} now")
            self._owners = owners
        return ""

    async def _ask(self) -> str:
        asked = await self._question(self._runs)
        self._unanswered = not asked.answers
        if asked.answers:
            status = _together(list(asked.answers.values()))
            # A run that lost its lease does not report shards. In this case, continue to show the last figures, with their age.
            self._paused = not status.shards and self._view is not None
            if not self._paused:
                self._view, self._said = self._pulse.add(status), self._clock.time()
        return "; ".join(
            f"{readable(owner)} cannot be asked: {reason}" for owner, reason in sorted(asked.reasons.items())
        )


def _together(answers: list[RunStatus]) -> RunStatus:
    """Combine the status of several runs of one application, which read different streams."""
    if len(answers) == 1:
        return answers[0]
    return RunStatus(
        max(each.at for each in answers),
        [shard for each in answers for shard in each.shards],
        sum(each.room for each in answers),
        sum(each.cpu for each in answers),
        [query for each in answers for query in each.queries],
    )
