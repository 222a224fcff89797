"""Takes, renews and releases a run's leases: one row for each stream that it reads.

The table is scanned only while a lease is missing. Each held lease has a `Renewal` with its own schedule.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import (
    AlreadyRunningError,
    KinesisEfoError,
    LeaseError,
    LeaseLostError,
    LeaseTableError,
    TableUnavailableError,
)
from kinesis_efo.leases.decision import Free, Rival, decide
from kinesis_efo.leases.expiry import Heartbeat, Observer
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.listener import LeaseListener, SilentListener
from kinesis_efo.leases.notes import RunNotes
from kinesis_efo.leases.owner import of_this_program, provably_gone, readable
from kinesis_efo.leases.renewal import Renewal, RenewalEnd, Timing
from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Conflict, LeaseStore, Outcome, Scan
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LeaseStats:
    """Statistics of a run's leases, for metrics: plain numbers, read from other threads.

    Attributes:
        taken: Leases that this run took.
        lost_to_others: Leases that another run took.
        not_renewed: Leases given up because no renewal succeeded in time.
    """

    taken: int = 0
    lost_to_others: int = 0
    not_renewed: int = 0


class RunLease:
    """Holds the lease on each stream that a run reads. One per run, on one asyncio loop.

    Args:
        table: The lease table.
        owner: The owner name of this run, from `owner_id`.
        keys: The streams, and the keys of the rows.
        timing: How long a lease lasts.
        clock: Time.
        random: Spreads renewals.
        application: Name for messages.
        gone: Returns whether an owner has certainly ended, so that its leases need not expire.
        is_sibling: Returns whether an owner is a process of the same program.

    Attributes:
        stats: Statistics of the leases.
        notes: Notes for later runs.
    """

    def __init__(
        self,
        table: LeaseStore,
        owner: str,
        keys: LeaseKeys,
        timing: Timing,
        clock: Clock,
        random: Random,
        *,
        application: str | None = None,
        gone: Callable[[str], bool] = provably_gone,
        is_sibling: Callable[[str], bool] = of_this_program,
    ) -> None:
        self.stats = LeaseStats()
        self.notes = RunNotes(clock)
        self._table = table
        self._me = owner
        self._keys = keys
        self._endpoint = ""
        self._status: str | None = None
        self._listener: LeaseListener = SilentListener()
        self._clock = clock
        self._timing = timing
        self._random = random
        self._subject = f"application {application}" if application else table.label
        self._is_sibling = is_sibling
        self._observer = Observer(timing.lease_timeout, gone)
        self._wanted: frozenset[str] = frozenset()
        self._further: frozenset[str] = frozenset()
        self._refused: dict[str, LeaseError] = {}
        self._renewals: dict[str, Renewal] = {}
        self._epochs: dict[str, int] = {}
        self._tending: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._trouble: LeaseError | None = None
        self._troubled_since: float | None = None
        self._stopping = False

    def want(self, streams: Collection[str]) -> None:
        """Take the leases on these streams as soon as possible, and hold them until `stop`.

        Args:
            streams: Logical names.
        """
        if self._wanted != frozenset(streams):
            self._wanted = frozenset(streams)
            self._wake.set()

    def extend(self, streams: Collection[str]) -> None:
        """Take the leases on further streams, too. If one cannot be taken, the run does not end; `wait_held` raises the reason.

        Args:
            streams: Logical names.
        """
        for stream in streams:
            self._refused.pop(stream, None)
        self._further |= frozenset(streams) - self._wanted
        self.want(self._wanted | frozenset(streams))

    @property
    def held(self) -> frozenset[str]:
        """Streams whose lease is held now."""
        # Copied, because other threads read this.
        return frozenset(stream for stream, renewal in list(self._renewals.items()) if renewal.held)

    @property
    def wanted(self) -> frozenset[str]:
        """Streams whose lease should be held."""
        return self._wanted

    def is_held(self, stream: str) -> bool:
        """Whether a lease is held now. Reads the clock, so it is right even after the process was suspended."""
        renewal = self._renewals.get(stream)
        return renewal is not None and renewal.held

    def seconds(self, stream: str) -> float:
        """Return how much longer a lease is certainly held, in seconds; 0 if it is not held."""
        renewal = self._renewals.get(stream)
        return max(0.0, renewal.deadline - self._clock.monotonic()) if renewal is not None and renewal.held else 0.0

    def epoch(self, stream: str) -> int | None:
        """Return the epoch with which the lease on a stream was taken; None while it is not held."""
        return self._epochs[stream] if self.is_held(stream) else None

    @property
    def failure(self) -> KinesisEfoError | None:
        """The error that ended the run; None if there is none."""
        return self._listener.failure.error

    async def wait_held(self, streams: Collection[str], at_most: float | None = None) -> None:
        """Wait until the leases on these streams are held.

        Args:
            streams: Logical names, given to `want` or `extend` before.
            at_most: Longest wait, seconds.

        Raises:
            AlreadyRunningError: Another run holds one of them, and was seen to renew it during `lease_timeout`.
            LeaseLostError: Another run took one of them.
            LeaseTableError: The table cannot be used.
            TableUnavailableError: `at_most` has passed.
        """
        give_up_at = None if at_most is None else self._clock.monotonic() + at_most
        while True:
            self._listener.failure.raise_if_set()
            for stream in sorted(self._refused.keys() & streams):
                raise self._refused[stream]
            missing = sorted(stream for stream in streams if not self.is_held(stream))
            if not missing:
                return
            now = self._clock.monotonic()
            if give_up_at is not None and now >= give_up_at:
                reason = f": {self._trouble}" if self._trouble else ""
                raise TableUnavailableError(
                    f"{self._subject}: the lease on stream {', '.join(missing)} is not held after {at_most:g} s{reason}"
                ) from self._trouble
            self._news.clear()
            pause = self._timing.renewal if give_up_at is None else give_up_at - now
            await within(self._clock, pause, self._news.wait())

    # -- start and stop

    async def start(self, listener: LeaseListener, endpoint: str, status: str | None = None) -> None:
        """Check the table and start.

        Args:
            listener: Reads the streams, and is told when leases are taken or lost.
            endpoint: Address at which this run serves data, written into the rows for other processes.
            status: Address and token with which tools can read this run's status, also written into the rows.

        Raises:
            LeaseTableError: The table is missing, is not a lease table, or access to it is refused.
            TableUnavailableError: It could not be reached for `Timing.patience`.
        """
        self._listener, self._endpoint, self._status = listener, endpoint, status
        listener.failure.on_set(self._news.set)
        settings = RetrySettings(timeout=self._timing.patience)
        patience = Patience(settings, self._clock, self._random.random)
        await patience.call(f"DescribeTable of {self._table.label}", self._table.check)
        self._loop_task = asyncio.create_task(self._run(), name=f"leases of {self._me}")

    async def stop(self, at_most: float = 5.0) -> None:
        """Release all leases.

        Args:
            at_most: Seconds after which leases that could not be released are left to expire.
        """
        give_up_at = self._clock.monotonic() + at_most
        self._stopping = True
        self._wake.set()
        for renewal in self._renewals.values():
            renewal.leave()
        if self._loop_task is not None:
            # Not cancelled at once: a lease that is just being taken would not be released.
            await within(self._clock, at_most, asyncio.wait((self._loop_task,)))
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        tending = set(self._tending)
        if tending:
            await within(self._clock, give_up_at - self._clock.monotonic(), asyncio.wait(tending))
        for stream in self._renewals:
            logger.warning("the lease on stream %s was not released in time: it is left to expire", stream)
        for task in tending:
            task.cancel()
        await asyncio.gather(*tending, return_exceptions=True)
        self._renewals.clear()

    # -- the loop

    async def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                pause = await self._step() if self._missing else self._timing.renewal
                self._news.set()
                await within(self._clock, pause, self._wake.wait())
        except Exception as error:
            self._fail(error)

    @property
    def _missing(self) -> list[str]:
        return [] if self._stopping else sorted(self._wanted - self._renewals.keys())

    async def _step(self) -> float:
        """Scan once and take the free leases.

        Returns:
            Seconds until the next step is due.
        """
        try:
            scan = await within(self._clock, self._timing.lease_timeout, self._table.scan())
            if scan is None:
                raise TableUnavailableError(f"{self._table.label}: no answer for {self._timing.lease_timeout:g} s")
            self._check_readable(scan)
            return await self._take_missing(scan)
        except TableUnavailableError as error:
            return self._unavailable(error)

    def _unavailable(self, error: TableUnavailableError) -> float:
        now = self._clock.monotonic()
        if self._trouble is None or self._troubled_since is None:
            self._troubled_since = now
            logger.warning("%s", error)
        self._trouble = error
        if now - self._troubled_since >= self._timing.patience:
            raise TableUnavailableError(
                f"{self._subject}: the lease table could not be used for {now - self._troubled_since:.0f} s, given up: {error}. Nothing was "
                "lost: start the query again; kinesis-efo option 'subscribe.retryTimeout' lets it wait longer"
            ) from error
        return self._timing.renewal / 3 * self._random.uniform(0.5, 1)

    def _check_readable(self, scan: Scan) -> None:
        for key in sorted(scan.unreadable):
            named = ":" in key or key.startswith("shardId-")
            if named and (stream := self._keys.stream(key)) in self._wanted:
                error = LeaseTableError(f"{scan.unreadable[key]}; correct or delete the row")
                if stream not in self._further:
                    raise error
                self._refuse(stream, error)

    async def _take_missing(self, scan: Scan) -> float:
        now = self._clock.monotonic()
        heartbeats: dict[str, dict[str, Heartbeat]] = {}
        for key, seen in self._observer.observe(scan.leases, now).items():
            if (stream := self._keys.stream(key)) is not None:
                heartbeats.setdefault(stream, {})[key] = seen
        missing = self._missing
        found = {
            stream: decide(run_key(stream), heartbeats.get(stream, {}), self._observer, now, me=self._me)
            for stream in missing
        }
        for stream in self._further & found.keys():
            each = found[stream]
            if isinstance(each, Rival) and self._observer.proven_alive(each.seen, now):
                self._refuse(stream, self._already_running(each.seen, now))
                missing.remove(stream)
                del found[stream]
        rivals = [each.seen for each in found.values() if isinstance(each, Rival)]
        alive = [seen for seen in rivals if self._observer.proven_alive(seen, now)]
        if alive:
            raise self._already_running(alive[0], now)
        if not self._renewals:
            # Take the first stream alone: if runs start at the same moment, each would hold some streams, and none all.
            missing = missing[:1] if not rivals else []
        free = {stream: each for stream in missing if isinstance(each := found[stream], Free)}
        for stream, each in free.items():
            self._check_continued(stream, each)
        attempts = [self._take(stream, each, heartbeats.get(stream, {})) for stream, each in free.items()]
        # No attempt takes longer than a lease. If one times out but its write arrives later, the row has our owner and is taken again.
        results = await asyncio.gather(
            *(within(self._clock, self._timing.lease_timeout, attempt) for attempt in attempts), return_exceptions=True
        )
        trouble = [error for error in results if isinstance(error, TableUnavailableError)]
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, TableUnavailableError):
                raise error
        if trouble:
            raise trouble[0]
        self._trouble = None
        if any(result is True for result in results):
            return 0.0  # scan again at once: more leases may be free now
        # Wake up when the first of them expires.
        expiring = [left for seen in rivals if (left := self._observer.expires_in(seen, self._clock.monotonic()))]
        return min([self._timing.lease_timeout / 10, *expiring])

    def _refuse(self, stream: str, error: LeaseError) -> None:
        """Give up a stream of `extend`. Only the callers that wait for it get the error."""
        logger.warning("%s", error)
        self._further -= {stream}
        self._wanted -= {stream}
        self._refused[stream] = error
        self._news.set()

    def _check_continued(self, stream: str, free: Free) -> None:
        """Raise an error if another run has held the lease while this run was cut off from the table."""
        epoch = self._epochs.get(stream)
        if epoch is not None and free.row is not None and free.row.owner != self._me and free.row.epoch > epoch:
            raise LeaseLostError(
                f"{self._subject}: another run held the lease on stream {stream} while this one could not renew it, "
                "and has ended since. Nothing was lost: start this query again, and run one query per application"
            )

    async def _take(self, stream: str, free: Free, seen: Mapping[str, Heartbeat]) -> bool:
        write: Awaitable[Outcome]
        if free.row is None:
            row = Lease(run_key(stream), checkpoint=None).taken(self._me, self._endpoint, free.epoch, self._status)
            write = self._table.create_if_absent(row)
        else:
            write = self._table.take(free.row, self._me, self._endpoint, free.epoch, self._status)
        sent_at = self._clock.monotonic()
        outcome = await write
        if isinstance(outcome, Conflict):
            return outcome.current is not None and outcome.current.owner == self._me  # an earlier take arrived late
        if self._clock.monotonic() < sent_at + self._timing.lease_timeout:
            rows = {key: each.lease for key, each in seen.items() if not each.gone and not each.lease.is_run}
            self._begin(stream, outcome.lease, sent_at, rows)
        return True

    def _begin(self, stream: str, lease: Lease, sent_at: float, rows: Mapping[str, Lease]) -> None:
        lag = partial(self._listener.lag, stream)
        self.notes.found(stream, lease)
        noting = partial(self.notes.stored_in, stream)
        renewal = Renewal(self._table, lease, sent_at, self._timing, self._clock, self._random, lag, noting)
        self._renewals[stream], self._epochs[stream] = renewal, lease.epoch
        self._further -= {stream}
        self.stats.taken += 1
        logger.debug("lease %s taken by %s, epoch %d", lease.key, self._me, lease.epoch)
        task = asyncio.create_task(self._tend(stream, renewal), name=f"lease {lease.key}")
        self._tending.add(task)
        task.add_done_callback(self._tending.discard)
        if self._stopping:  # while the write was under way
            renewal.leave()
        else:
            self._listener.lease_taken(stream, rows)
            self._news.set()

    async def _tend(self, stream: str, renewal: Renewal) -> None:
        key = renewal.lease.key
        try:
            match await renewal.keep():
                case RenewalEnd.LEAVING:
                    freed = await renewal.release()
                    logger.debug("lease %s %s by %s", key, "released" if freed else "left to expire", self._me)
                case RenewalEnd.LOST:
                    self.stats.lost_to_others += 1
                    logger.warning("lease %s of %s lost to %s", key, self._me, renewal.lost_to or "nobody")
                    self._listener.lease_lost(stream, renewal.lost_to)
                case RenewalEnd.UNREACHABLE:
                    self.stats.not_renewed += 1
                    logger.warning("lease %s of %s lost: not renewed in time: %s", key, self._me, renewal.why_late)
                    self._listener.lease_lost(stream, None)
                    if isinstance(renewal.trouble, LeaseTableError):
                        self._fail(renewal.trouble)
                    elif self._stopping:
                        await renewal.release()
        except Exception as error:
            self._fail(error)
        finally:
            # Only after the release, because the row must not be taken again before.
            del self._renewals[stream]
            self._wake.set()
            self._news.set()

    def _already_running(self, rival: Heartbeat, now: float) -> AlreadyRunningError:
        owner = rival.lease.owner or ""
        whose, remedy = readable(owner), "stop that query, or give this one an application of its own"
        if self._is_sibling(owner):
            whose = f"this Spark program itself, by another of its sources (process {whose})"
            remedy = (
                "sources of one program share a run if they can find each other: the driver's log says why these cannot, and sessions of "
                "Spark Connect never do. Write to several tables from one query, with foreachBatch, or give this source an application of its own"
            )
        return AlreadyRunningError(
            f"{self._subject}, stream {self._keys.stream(rival.lease.key)}, is already read by {whose}, "
            f"last seen {now - rival.changed_at:.0f} s ago renewing lease {rival.lease.key}; {remedy}"
        )

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, LeaseError):
            logger.error("the run's lease failed", exc_info=error)
            cause, error = error, LeaseError(f"{self._subject}: the run's lease failed: {error!r}")
            error.__cause__ = cause
        self._listener.failure.set(error)
