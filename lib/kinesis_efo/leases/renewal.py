"""Renews the row of one lease, and computes the lease's deadline on this process's clock.

A lease is valid for `lease_timeout` seconds after its last successful write was sent. Other runs start counting later, when they read the
written row, so they consider the lease expired only after this run does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from random import Random

from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import LeaseError
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Conflict, LeaseStore, Outcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timing:
    """The timeouts of a lease, in seconds."""

    lease_timeout: float  # How long a lease lasts without renewal
    patience: float = 600.0  # How long the table may be unavailable before the query fails (`retryTimeout`)

    @property
    def renewal(self) -> float:
        """Seconds between two renewals: a third of the timeout, so that two may fail; at most 10 s, to keep the row's lag up to date."""
        return min(self.lease_timeout / 3, 10.0)


class RenewalEnd(Enum):
    """Why the renewal of a lease ended."""

    LEAVING = "leaving"
    LOST = "another run acquired it"
    UNREACHABLE = "not renewed in time"


class Renewal:
    """Renews one lease until it is lost or must be released."""

    def __init__(
        self,
        store: LeaseStore,
        lease: Lease,
        sent_at: float,  # When the write that acquired the lease was sent, monotonic seconds
        timing: Timing,
        clock: Clock,
        random: Random,
        lag: Callable[[], Lag | None],  # Returns the lag to write with a renewal
        # Adds attributes to the lease row before each write; see `RunNotes.stored_in`
        add_attributes: Callable[[Lease], Lease] = lambda lease: lease,
    ) -> None:
        self.lease = lease  # The row as last written
        self.lost_to: str | None = None
        self.trouble: LeaseError | None = None  # The error of the last write, if it failed
        self._store = store
        self._clock = clock
        self._timing = timing
        self._random = random
        self._lag = lag
        self._add_attributes = add_attributes
        self._sent_at = sent_at
        self._stopped = 0.0
        self._unanswered = 0
        self._leaving = asyncio.Event()
        self._keeping = True

    @property
    def deadline(self) -> float:
        """The time until which the lease is valid, in monotonic seconds."""
        return self._sent_at + self._timing.lease_timeout

    @property
    def valid(self) -> bool:
        return self._clock.monotonic() < self.deadline

    @property
    def held(self) -> bool:
        """Whether the lease may be used: it is valid, and its renewal has not ended."""
        return self._keeping and self.valid

    @property
    def why_late(self) -> str:
        """Why the lease was not renewed in time, for messages."""
        if self._stopped >= self._timing.renewal:
            return (
                f"this process did not run for {self._stopped:.1f} s (stopped, swapped out, or short of CPU) and lease_timeout is "
                f"{self._timing.lease_timeout:g} s"
            )
        if self.trouble is not None:
            return str(self.trouble)
        return f"{self._store.label} did not answer (writes sent: {self._unanswered})"

    def leave(self) -> None:
        """Make `keep` return so that the lease can be released."""
        self._leaving.set()

    async def keep(self) -> RenewalEnd:
        """Renew the lease until it is lost, expires, or `leave` is called. Returns which of these happened. Does not release the lease."""
        try:
            # Pause for a random time, to spread the renewals of leases that were acquired together.
            pause = self._timing.renewal * self._random.uniform(0.5, 1)
            while True:
                await self._pause(pause)
                if not self.valid:  # this process may have been suspended
                    return RenewalEnd.UNREACHABLE
                if self._leaving.is_set():
                    return RenewalEnd.LEAVING
                match await self._write(lambda lease: lease.renewed(self._lag()), self.deadline):
                    case None:
                        pause = self._retry_pause()
                    case Conflict(current):
                        self.lost_to = current.owner if current else None
                        return RenewalEnd.LOST
                    case Lease():
                        pause = self._sent_at + self._timing.renewal - self._clock.monotonic()
        finally:
            self._keeping = False

    async def _pause(self, seconds: float) -> None:
        due = min(self._clock.monotonic() + max(0.0, seconds), self.deadline)
        await within(self._clock, due - self._clock.monotonic(), self._leaving.wait())
        self._record_pause(due)

    def _record_pause(self, due: float) -> None:
        """Record how long this process was suspended, if it should have continued at `due` (monotonic seconds)."""
        self._stopped = max(self._stopped, self._clock.monotonic() - due)

    async def release(self) -> bool:
        """Remove the owner from the row, with retries for up to one lease timeout. Returns whether the row has no owner afterwards.

        This is safe even after the deadline: the run does not use the lease anymore, and the write fails if another run has acquired it.
        """
        give_up_at = self._clock.monotonic() + self._timing.lease_timeout
        while self._clock.monotonic() < give_up_at:
            match await self._write(Lease.released, give_up_at):
                case Lease():
                    return True
                case Conflict(current):
                    return current is None or current.owner is None
                case None:
                    await self._clock.sleep(self._retry_pause())
        return False

    async def _write(self, change: Callable[[Lease], Lease], give_up_at: float) -> Outcome | None:
        """Write the changed row; re-create it if it was deleted by hand. Return None after an error or once `give_up_at` has passed."""
        while True:
            after = self._add_attributes(change(self.lease))
            outcome = await self._send(self._store.update(self.lease, after), give_up_at)
            if outcome == Conflict(None) and after.owner is not None:
                outcome = await self._send(self._store.create(after), give_up_at)
                if isinstance(outcome, Lease):
                    logger.warning("lease %s: its row was deleted from %s; written again", after.key, self._store.label)
            current = outcome.current if isinstance(outcome, Conflict) else None
            if current is None or (current.owner, current.counter) != (self.lease.owner, self.lease.counter + 1):
                return outcome
            # An earlier write succeeded, but its response was lost. Do not extend the deadline: it is unknown when that write was sent.
            self.lease = current
            if self._clock.monotonic() >= give_up_at:
                return None

    async def _send(self, write: Awaitable[Outcome], give_up_at: float) -> Outcome | None:
        """Send one write. Return its outcome; None after an error or once `give_up_at` has passed."""
        sent_at = self._clock.monotonic()
        try:
            outcome = await within(self._clock, give_up_at - sent_at, write)
        except LeaseError as error:
            self.trouble = error
            return None
        finally:
            self._record_pause(give_up_at)
        if isinstance(outcome, Lease):
            self.lease, self._sent_at, self.trouble = outcome, sent_at, None
            self._stopped, self._unanswered = 0.0, 0
        elif outcome is None:
            self._unanswered += 1
        return outcome

    def _retry_pause(self) -> float:
        return self._timing.renewal / 3 * self._random.uniform(0.5, 1)
