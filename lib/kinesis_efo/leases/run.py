"""The run's lease: one row for each stream that a query reads. Finds out who holds it, takes it, keeps it and gives it back.

The table is scanned only while a lease is missing. One `Renewal` per held lease renews it, on its own schedule.
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
from kinesis_efo.leases.store import LeaseStore, Lost, Outcome, Scan
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import Patience

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LeaseStats:
    """What happened to a run's leases so far, for metrics: plain numbers, read from other threads.

    Attributes:
        taken: Leases that became ours.
        lost_to_others: Leases that another run took.
        not_renewed: Leases given up because no renewal came through in time.
    """

    taken: int = 0
    lost_to_others: int = 0
    not_renewed: int = 0


class RunLease:
    """Holds the lease on each stream that a run reads. One per run, on one asyncio loop.

    Args:
        table: The lease table.
        owner: Names this run; see `owner_id`.
        keys: The streams, and whose rows are whose.
        timing: How long a lease lasts.
        clock: Time.
        random: Spreads renewals.
        application: Name for messages.
        gone: Tells whether an owner has ended for certain, so that its leases need not expire.
        is_sibling: Tells whether an owner is a process of this very program.

    Attributes:
        stats: What happened so far.
        notes: What its rows remember for later runs.
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
        """Take the leases on further streams, too. One that cannot be taken does not end the run: `wait_held` says why not.

        Args:
            streams: Logical names.
        """
        for stream in streams:
            self._refused.pop(stream, None)
        self._further |= frozenset(streams) - self._wanted
        self.want(self._wanted | frozenset(streams))

    @property
    def held(self) -> frozenset[str]:
        """Streams whose lease is ours at this moment."""
        # The copy is for other threads that count.
        return frozenset(stream for stream, renewal in list(self._renewals.items()) if renewal.held)

    @property
    def wanted(self) -> frozenset[str]:
        """Streams whose lease is to be held."""
        return self._wanted

    def is_held(self, stream: str) -> bool:
        """Whether a lease is ours at this moment: asks the clock, so it is right even after the process was paused."""
        renewal = self._renewals.get(stream)
        return renewal is not None and renewal.held

    def seconds(self, stream: str) -> float:
        """For how long a lease is surely ours, in seconds; 0 if it is not."""
        renewal = self._renewals.get(stream)
        return max(0.0, renewal.deadline - self._clock.monotonic()) if renewal is not None and renewal.held else 0.0

    def epoch(self, stream: str) -> int | None:
        """The epoch with which the lease on a stream was taken; None while it is not held."""
        return self._epochs[stream] if self.is_held(stream) else None

    @property
    def failure(self) -> KinesisEfoError | None:
        """The error that ended the run, if one did."""
        return self._listener.failure.error

    async def wait_held(self, streams: Collection[str], at_most: float | None = None) -> None:
        """Wait until the leases on these streams are held.

        Args:
            streams: Logical names; they must be wanted.
            at_most: Longest wait, seconds.

        Raises:
            AlreadyRunningError: Another run holds one of them and has been seen renewing it, for `lease_timeout`.
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
        """Check the table and begin.

        Args:
            listener: Reads the streams, and learns what happens to their leases.
            endpoint: Where this run serves data; other processes find it in the rows.
            status: How tools ask this run how far it is; they find it there, too.

        Raises:
            LeaseTableError: The table is missing, is no lease table, or refuses us.
            TableUnavailableError: It could not be reached for as long as `Timing.patience` says.
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
            # Not cancelled at once: a lease that is just being taken would be ours without anybody to release it.
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
        """Scan, decide and take once.

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
            # The first stream decides between runs that start at the same moment: each would hold some, and none all.
            missing = missing[:1] if not rivals else []
        free = {stream: each for stream in missing if isinstance(each := found[stream], Free)}
        for stream, each in free.items():
            self._check_continued(stream, each)
        attempts = [self._take(stream, each, heartbeats.get(stream, {})) for stream, each in free.items()]
        # No attempt outlasts a lease. One that is given up may still arrive: then the row names us, and is taken again.
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
            return 0.0  # look again at once: more may be ours to take now
        # The moment at which the first of them expires is not slept through.
        expiring = [left for seen in rivals if (left := self._observer.expires_in(seen, self._clock.monotonic()))]
        return min([self._timing.lease_timeout / 10, *expiring])

    def _refuse(self, stream: str, error: LeaseError) -> None:
        """Do without a further stream: who needs it learns why, and nobody else has to."""
        logger.warning("%s", error)
        self._further -= {stream}
        self._wanted -= {stream}
        self._refused[stream] = error
        self._news.set()

    def _check_continued(self, stream: str, free: Free) -> None:
        """A run that was cut off from the table goes on only if nobody else has read meanwhile."""
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
        if isinstance(outcome, Lost):
            return outcome.current is not None and outcome.current.owner == self._me  # an earlier take had arrived
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
        logger.info("lease %s taken by %s, epoch %d", lease.key, self._me, lease.epoch)
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
                    logger.info("lease %s %s by %s", key, "released" if freed else "left to expire", self._me)
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
            # Only now: until its release is through, the row must not be taken again.
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
