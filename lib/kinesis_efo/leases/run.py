"""Acquires, renews and releases a run's leases: one row for each stream that it reads.

The table is scanned only while a lease is missing. Each acquired lease has a `Renewal` with a separate schedule.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import LeaseError, LeaseTableError, TableUnavailableError
from kinesis_efo.failure import Failure
from kinesis_efo.leases.expiry import Observer
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.notes import RunNotes
from kinesis_efo.leases.owner import of_this_program, provably_gone
from kinesis_efo.leases.renewal import Renewal, RenewalEnd, Timing
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.search import Free, Search
from kinesis_efo.leases.store import Conflict, LeaseStore
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LeaseStats:
    """Counts leases that this run acquired, lost to other runs, or failed to renew in time. Other threads may read the counts."""

    taken: int = 0
    lost_to_others: int = 0
    not_renewed: int = 0


class LeaseListener:
    """Starts and stops reading streams when `RunLease` acquires and loses leases, in its event loop. The base class does nothing."""

    def __init__(self) -> None:
        self.failure = Failure()

    def lease_taken(self, stream: str, rows: Mapping[str, Lease]) -> None:
        """Called when a stream's lease was acquired, to start reading. `rows` are the current rows of its shards, by lease key."""

    def lease_lost(self, stream: str, owner: str | None) -> None:
        """Called when a stream's lease was lost. Must stop reading before it returns. `owner` is the new owner; None if unknown."""

    def lag(self, stream: str) -> Lag | None:
        """Return the run's lag in a stream. Called before each renewal, so it must return immediately."""


class RunLease:
    """The leases of a run on the streams that it reads. One per run, in its event loop. Streams are identified by their logical names."""

    def __init__(
        self,
        table: LeaseStore,
        owner: str,  # The owner name of this run, from `owner_id`
        keys: LeaseKeys,
        timing: Timing,
        clock: Clock,
        random: Random,
        *,
        application: str | None = None,  # The application's name, for messages; None: messages name the table instead
        # Returns whether an owner has certainly ended, so that its leases can be acquired before they expire
        gone: Callable[[str], bool] = provably_gone,
        is_sibling: Callable[[str], bool] = of_this_program,  # Returns whether an owner is in the same Spark program
    ) -> None:
        self.stats = LeaseStats()
        self.notes = RunNotes(clock)
        self._table = table
        self._timing = timing
        self._clock = clock
        self._random = random
        subject = f"application {application}" if application else table.label
        self._search = Search(keys, Observer(timing.lease_timeout, gone), owner, subject, is_sibling)
        self._owner = owner
        self._endpoint = ""
        self._status: str | None = None
        self._listener = LeaseListener()
        self._renewals: dict[str, Renewal] = {}
        self._outage: TableUnavailableError | None = None
        self._outage_since = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._stopping = False

    def request(self, streams: Collection[str]) -> None:
        """Acquire the leases on these streams as soon as possible, and renew them until `stop`."""
        self._search.wanted = frozenset(streams)
        self._wake.set()

    def extend(self, streams: Collection[str]) -> None:
        """Acquire the leases on further streams. If this fails for a stream, the run continues, and `wait_held` raises the error."""
        self._search.extend(streams)
        self._wake.set()

    @property
    def held(self) -> frozenset[str]:
        """Streams on which the run has the lease."""
        # Iterate over a copy, because other threads read this property.
        return frozenset(stream for stream, renewal in list(self._renewals.items()) if renewal.held)

    @property
    def wanted(self) -> frozenset[str]:
        """Streams whose leases the run acquires and renews."""
        return self._search.wanted

    def is_held(self, stream: str) -> bool:
        """Whether the run has a stream's lease. Compares the deadline with the clock, in case the process was suspended."""
        renewal = self._renewals.get(stream)
        return renewal is not None and renewal.held

    def seconds(self, stream: str) -> float:
        """Return the seconds until a stream's lease expires if it is not renewed; 0 if the run does not have the lease."""
        return max(0.0, self._renewals[stream].deadline - self._clock.monotonic()) if self.is_held(stream) else 0.0

    def epoch(self, stream: str) -> int | None:
        """Return the epoch of a stream's lease; None if the run does not have the lease."""
        return self._renewals[stream].lease.epoch if self.is_held(stream) else None

    async def wait_held(self, streams: Collection[str], at_most: float | None = None) -> None:
        """Wait until the run has the leases on these streams, for at most `at_most` seconds. Call `want` or `extend` first.

        Raises:
            AlreadyRunningError: Another run has one of the leases and renews it.
            LeaseLostError: Another run has acquired one of the leases from this run.
            LeaseTableError: The table cannot be used.
            TableUnavailableError: The run does not have all of the leases after `at_most` seconds.
        """
        give_up_at = None if at_most is None else self._clock.monotonic() + at_most
        while True:
            self._listener.failure.raise_if_set()
            for stream in sorted(self._search.refused.keys() & streams):
                raise self._search.refused[stream]
            missing = sorted(stream for stream in streams if not self.is_held(stream))
            if not missing:
                return
            now = self._clock.monotonic()
            if give_up_at is not None and now >= give_up_at:
                error = self._outage
                raise TableUnavailableError(
                    f"{self._search.subject}: the lease on stream {', '.join(missing)} was not acquired within {at_most:g} s"
                    + (f": {error}" if error else "")
                ) from error
            self._news.clear()
            pause = self._timing.renewal if give_up_at is None else give_up_at - now
            await within(self._clock, pause, self._news.wait())

    async def start(self, listener: LeaseListener, endpoint: str, status: str | None = None) -> None:
        """Check the table and start acquiring leases. `endpoint` and `status` are written to the lease rows.

        Raises `LeaseTableError` if the table is not a lease table or denies access, and `TableUnavailableError` if it is unavailable for
        `Timing.patience` seconds.
        """
        self._listener = listener
        self._endpoint, self._status = endpoint, status
        listener.failure.on_set(self._news.set)
        settings = RetrySettings(timeout=self._timing.patience)
        patience = Patience(settings, self._clock, self._random.random)
        await patience.call(f"DescribeTable of {self._table.label}", self._table.check)
        self._tasks.add(asyncio.create_task(self._run(), name=f"leases of {self._owner}"))

    async def stop(self, at_most: float = 5.0) -> None:
        """Release all leases. Leases that are not released within `at_most` seconds are left to expire."""
        self._stopping = True
        self._wake.set()
        for renewal in self._renewals.values():
            renewal.leave()
        # Wait before cancelling tasks, so that a lease that is just being acquired is released, too.
        if self._tasks:
            await within(self._clock, at_most, self._ended())
        for stream in self._renewals:
            logger.warning("the lease on stream %s was not released in time: it is left to expire", stream)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._renewals.clear()

    async def _ended(self) -> None:
        while left := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(left)

    # -- acquiring leases

    async def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                await within(self._clock, await self._step(), self._wake.wait())
        except Exception as error:
            self._fail(error)

    async def _step(self) -> float:
        """Scan once if a lease is missing, and acquire free leases. Returns the seconds until the next step."""
        timeout = self._timing.lease_timeout
        if self.wanted <= self._renewals.keys():
            return self._timing.renewal
        try:
            scan = await within(self._clock, timeout, self._table.scan())
            if scan is None:
                raise TableUnavailableError(f"{self._table.label}: no answer for {timeout:g} s")
            if self._stopping:
                return 0.0
            free, expires_at = self._search.choose(scan, self._renewals.keys(), self._clock.monotonic())
            self._news.set()
            # Stop waiting after the lease timeout. If a write succeeds later, this run owns the row, and its next scan acquires the lease.
            attempts = [within(self._clock, timeout, self._take(stream, found)) for stream, found in free.items()]
            results = await asyncio.gather(*attempts, return_exceptions=True)
            errors = [each for each in results if isinstance(each, BaseException)]
            for error in sorted(errors, key=lambda each: isinstance(each, TableUnavailableError)):  # fatal errors first
                raise error
        except TableUnavailableError as error:
            return self._unavailable(error)
        self._outage = None
        # After acquiring a lease, scan again at once: more leases may be free. Otherwise, wait at most until another lease may expire.
        return 0.0 if True in results else min(timeout / 10, expires_at - self._clock.monotonic())

    def _unavailable(self, error: TableUnavailableError) -> float:
        if self._outage is None:
            logger.warning("%s", error)
            self._outage_since = self._clock.monotonic()
        self._outage = error
        seconds = self._clock.monotonic() - self._outage_since
        if seconds >= self._timing.patience:
            raise TableUnavailableError(
                f"{self._search.subject}: the lease table could not be used for {seconds:.0f} s, given up: {error}. Nothing was "
                "lost: restart the query; to wait longer, raise kinesis-efo option 'retryTimeout'"
            ) from error
        return self._timing.renewal / 3 * self._random.uniform(0.5, 1)

    async def _take(self, stream: str, free: Free) -> bool:
        """Acquire one lease. Returns whether to scan again at once."""
        before = free.row or Lease(run_key(stream), checkpoint=None)
        after = before.taken(self._owner, self._endpoint, free.epoch, self._status)
        sent_at = self._clock.monotonic()
        outcome = await (self._table.create(after) if free.row is None else self._table.update(before, after))
        if isinstance(outcome, Conflict):
            # If this run owns the row, an earlier write succeeded although its response was lost: scan again.
            return outcome.current is not None and outcome.current.owner == self._owner
        if self._clock.monotonic() < sent_at + self._timing.lease_timeout:
            self.stats.taken += 1
            self.notes.load(stream, outcome)
            self._search.record_acquired(stream, outcome.epoch)
            logger.debug("lease %s acquired by %s, epoch %d", outcome.key, self._owner, outcome.epoch)
            lag, add = partial(self._listener.lag, stream), partial(self.notes.stored_in, stream)
            renewal = Renewal(self._table, outcome, sent_at, self._timing, self._clock, self._random, lag, add)
            self._renewals[stream] = renewal
            task = asyncio.create_task(self._tend(stream, renewal), name=f"lease on {stream}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if self._stopping:  # `stop` was called during the write
                renewal.leave()
            else:
                self._listener.lease_taken(stream, free.shards)
                self._news.set()
        return True

    async def _tend(self, stream: str, renewal: Renewal) -> None:
        lease = f"lease {renewal.lease.key}"
        lost = f"{lease} of {self._owner} lost"
        try:
            match await renewal.keep():
                case RenewalEnd.LEAVING:
                    freed = await renewal.release()
                    logger.debug("%s %s by %s", lease, "released" if freed else "left to expire", self._owner)
                case RenewalEnd.LOST:
                    self.stats.lost_to_others += 1
                    logger.warning("%s to %s", lost, renewal.lost_to or "nobody")
                    self._listener.lease_lost(stream, renewal.lost_to)
                case RenewalEnd.UNREACHABLE:
                    self.stats.not_renewed += 1
                    logger.warning("%s: not renewed in time: %s", lost, renewal.why_late)
                    self._listener.lease_lost(stream, None)
                    if isinstance(renewal.trouble, LeaseTableError):
                        self._fail(renewal.trouble)
                    elif self._stopping:
                        await renewal.release()
        except Exception as error:
            self._fail(error)
        finally:
            # Remove the renewal only after the release, so that this run does not acquire the row again before then.
            del self._renewals[stream]
            self._wake.set()
            self._news.set()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, LeaseError):
            logger.error("the run's lease failed", exc_info=error)
            cause, error = error, LeaseError(f"{self._search.subject}: the run's lease failed: {error!r}")
            error.__cause__ = cause
        self._listener.failure.set(error)
