"""A worker's loop over the lease table: finds out who holds what, takes leases, keeps them and gives them back.

It scans the table only while a wanted lease is not held, or rows of finished shards are left. One `Keeper` per held lease
renews it, on its own schedule.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from kinesis_efo.clock import Clock, within
from kinesis_efo.errors import AlreadyRunningError, LeaseError, LeaseTableError, TableUnavailableError
from kinesis_efo.leases.cleanup import finished_parents, passed_parents
from kinesis_efo.leases.election import Plan, Worker, plan
from kinesis_efo.leases.expiry import Observer, Sighting
from kinesis_efo.leases.keeper import Ending, Keeper, Noted, Timing, Writing
from kinesis_efo.leases.listener import LeaseListener, SilentListener
from kinesis_efo.leases.owner import provably_gone, readable
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.leases.store import LeaseStore, Lost, Outcome, Scan
from kinesis_efo.positions import SHARD_END, Position

logger = logging.getLogger(__name__)

CLEANUP_INTERVAL = 60.0
"""Seconds between two cleanups of the rows of finished shards (KCL's interval)."""


@dataclass(slots=True)
class LeaseStats:
    """What happened to a worker's leases so far, for metrics: plain numbers, read from other threads.

    Attributes:
        taken: Leases that became ours.
        lost_to_others: Leases that another worker took; not those that were handed over.
        not_renewed: Leases given up because no renewal came through in time.
    """

    taken: int = 0
    lost_to_others: int = 0
    not_renewed: int = 0


class LeaseLoop:
    """Holds the leases of the shards that a worker wants. One per worker, on one asyncio loop.

    Args:
        table: The lease table.
        worker: This worker and its query run. Workers of one run share the leases, those of another are refused.
        timing: How often rows are written, and after how long a lease is free.
        clock: Time.
        random: Spreads renewals and choices.
        application: Name for messages.
        in_flight: Requests to the table at the same time, at most.
        gone: Tells whether an owner has ended for certain, so that its leases need not expire.

    Attributes:
        stats: What happened so far.
    """

    def __init__(
        self,
        table: LeaseStore,
        worker: Worker,
        timing: Timing,
        clock: Clock,
        random: Random,
        *,
        application: str | None = None,
        in_flight: int = 32,
        gone: Callable[[str], bool] = provably_gone,
    ) -> None:
        self.stats = LeaseStats()
        self._table = table
        self._me = worker
        self._endpoint = ""
        self._listener: LeaseListener = SilentListener()
        self._clock = clock
        self._timing = timing
        self._random = random
        self._subject = f"application {application}" if application else table.label
        self._slots = asyncio.Semaphore(in_flight)
        self._writing = Writing(table, clock, timing, self._slots, random)
        self._observer = Observer(timing.lease_timeout, gone)
        self._wanted: dict[str, LeaseInfo] = {}
        self._complete = False
        self._finished: set[str] = set()
        self._noted: dict[str, Noted] = {}
        self._keepers: dict[str, Keeper] = {}
        self._tending: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._plan = Plan()
        self._wake = asyncio.Event()
        self._news = asyncio.Event()
        self._cleanup_at: float | None = None
        self._trouble: LeaseError | None = None
        self._failure: LeaseError | None = None
        self._stopping = False

    # -- what the listener says

    def want(self, keys: Mapping[str, LeaseInfo], *, complete: bool = True) -> None:
        """Set the leases that this run should hold, in place of the former set.

        New ones are taken as soon as possible; those held that are not in it any more are released.

        Args:
            keys: Lease keys, and what is known of their shards.
            complete: Whether these are all that the query reads. Then parents of these shards are done where they are missing.
        """
        self._wanted, self._complete = dict(keys), complete
        self._finished &= keys.keys()
        self._noted = {key: noted for key, noted in self._noted.items() if key in keys or key in self._keepers}
        for key in self._keepers.keys() - keys.keys():
            self._keepers[key].leave()
        self._wake.set()

    def checkpoint(self, key: str, position: Position, sub: int = 0) -> None:
        """Note how far a shard is done. Written with a later renewal, forwards only, and only while the lease is ours.

        Args:
            key: Lease key.
            position: Everything up to here is done.
            sub: Sub-sequence number within an aggregated record.
        """
        noted = self._noted.get(key)
        if noted is None or Lease(key, checkpoint=noted.position, sub=noted.sub).advances(position, sub):
            self._noted[key] = Noted(position, sub, noted.children if noted else frozenset())

    def finish(self, key: str, children: Collection[str] = ()) -> None:
        """Note that a shard is done to its end: its lease gets the checkpoint `SHARD_END` and is released.

        Args:
            key: Lease key.
            children: Shard ids of its children.
        """
        self._noted[key] = Noted(SHARD_END, 0, frozenset(children))
        self._finished.add(key)
        self._cleanup_at = self._cleanup_at or self._clock.monotonic() + CLEANUP_INTERVAL
        if key in self._keepers:
            self._keepers[key].leave()

    # -- what the listener asks

    @property
    def held(self) -> frozenset[str]:
        """Lease keys that are ours at this moment."""
        # The copy is for other threads that count.
        return frozenset(key for key, keeper in list(self._keepers.items()) if keeper.held)

    @property
    def wanted(self) -> frozenset[str]:
        """Lease keys that are to be held, the finished ones left out."""
        return frozenset(self._open)

    def is_held(self, key: str) -> bool:
        """Whether a lease is ours at this moment: asks the clock, so it is right even after the process was paused."""
        keeper = self._keepers.get(key)
        return keeper is not None and keeper.held

    def read_until(self, key: str, position: Position) -> float | None:
        """The time up to which every record that arrived lies at or before a position, by the row of a held lease; epoch seconds."""
        keeper = self._keepers.get(key)
        lease = keeper.lease if keeper is not None else None
        known = lease is not None and lease.checkpoint is not None and position.reaches(lease.checkpoint)
        return lease.read_until if lease is not None and known else None

    @property
    def failure(self) -> LeaseError | None:
        """The error that ended the loop, if one did."""
        return self._failure

    async def wait_held(self, keys: Collection[str], at_most: float | None = None) -> None:
        """Wait until all these leases are held by this worker or, where the run has several, by another of them.

        Args:
            keys: Lease keys; they must be wanted.
            at_most: Longest wait, seconds.

        Raises:
            AlreadyRunningError: Another run holds one of them and has been seen renewing it, for `lease_timeout`.
            LeaseTableError: The table cannot be used.
            TableUnavailableError: `at_most` has passed.
        """
        give_up_at = None if at_most is None else self._clock.monotonic() + at_most
        while True:
            if self._failure is not None:
                raise self._failure
            missing = [key for key in keys if not self.is_held(key) and key not in self._plan.with_peers]
            if not missing:
                return
            now = self._clock.monotonic()
            if give_up_at is not None and now >= give_up_at:
                others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                reason = f": {self._trouble}" if self._trouble else ""
                raise TableUnavailableError(
                    f"{self._subject}: lease {missing[0]}{others} not held after {at_most:g} s{reason}"
                ) from self._trouble
            self._news.clear()
            pause = self._timing.renewal if give_up_at is None else give_up_at - now
            await within(self._clock, pause, self._news.wait())

    # -- start and stop

    async def start(self, listener: LeaseListener, endpoint: str) -> None:
        """Check the table and begin.

        Args:
            listener: Reads the shards, and learns what happens to their leases.
            endpoint: Where this worker serves data; other processes find it in the rows.

        Raises:
            LeaseTableError: The table is missing, is no lease table, or refuses us.
            TableUnavailableError: It cannot be reached.
        """
        self._listener, self._endpoint = listener, endpoint
        await self._table.check()
        self._loop_task = asyncio.create_task(self._run(), name=f"leases of {self._me.id}")

    async def stop(self, at_most: float = 5.0) -> None:
        """Write the last checkpoints and release all leases.

        Args:
            at_most: Seconds after which leases that could not be released are left to expire.
        """
        give_up_at = self._clock.monotonic() + at_most
        self._stopping = True
        self._wake.set()
        if self._loop_task is not None:
            # Not cancelled at once: a lease that is just being taken would be ours without anybody to release it.
            await within(self._clock, at_most, asyncio.wait((self._loop_task,)))
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        for keeper in self._keepers.values():
            keeper.leave()
        tending = set(self._tending)
        if tending:
            await within(self._clock, give_up_at - self._clock.monotonic(), asyncio.wait(tending))
        for key in self._keepers:
            logger.warning("lease %s not released by %s in time: it is left to expire", key, self._me.id)
        for task in tending:
            task.cancel()
        await asyncio.gather(*tending, return_exceptions=True)
        self._keepers.clear()

    # -- the loop

    async def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                pause = await self._step() if self._scan_due() else self._timing.renewal
                self._news.set()
                await within(self._clock, pause, self._wake.wait())
        except Exception as error:
            self._fail(error)

    def _scan_due(self) -> bool:
        cleanup = self._cleanup_at is not None and self._clock.monotonic() >= self._cleanup_at
        return cleanup or not self._open <= self._keepers.keys()

    @property
    def _open(self) -> set[str]:
        return self._wanted.keys() - self._finished

    async def _step(self) -> float:
        """Scan, decide and act once.

        Returns:
            Seconds until the next step is due.
        """
        try:
            scan = await within(self._clock, self._timing.lease_timeout, self._table.scan())
            if scan is None:
                raise TableUnavailableError(f"{self._table.label}: no answer for {self._timing.lease_timeout} s")
        except TableUnavailableError as error:
            if self._trouble is None:
                logger.warning("%s", error)
            self._trouble = error
            return self._timing.renewal / 3 * self._random.uniform(0.5, 1)
        self._trouble = None
        if bad := [scan.unreadable[key] for key in sorted(scan.unreadable.keys() & self._open)]:
            raise LeaseTableError(f"{bad[0]}; correct or delete the row")
        now = self._clock.monotonic()
        sightings = self._observer.observe(scan.leases, now)
        self._plan = plan(
            sightings, self._observer, now, me=self._me, wanted=self._open, held=self._keepers, random=self._random
        )
        if self._plan.rival is not None and self._observer.proven_alive(self._plan.rival, now):
            raise self._already_running(self._plan.rival, now)
        await self._act(self._plan)
        await self._clean(scan, sightings)
        missing = self._open - self._keepers.keys() - self._plan.with_peers
        if not missing:
            return self._timing.renewal
        # The moment at which the first of them expires is not slept through.
        now = self._clock.monotonic()
        expiring = [
            left for key in missing & sightings.keys() if (left := self._observer.expires_in(sightings[key], now))
        ]
        return min([self._timing.lease_timeout / 10, *expiring])

    async def _act(self, todo: Plan) -> None:
        attempts = [self._create(key) for key in todo.create] + [self._take(lease) for lease in todo.take]
        if todo.ask is not None:
            attempts.append(self._ask(todo.ask))
        # No attempt outlasts a lease. One that is given up may still arrive: then the row names us, and is taken again.
        results = await asyncio.gather(
            *(within(self._clock, self._timing.lease_timeout, attempt) for attempt in attempts), return_exceptions=True
        )
        for error in results:
            if isinstance(error, TableUnavailableError):
                self._trouble = error
            elif isinstance(error, BaseException):
                raise error
        if any(result is True for result in results):
            self._wake.set()  # look again at once: more may be ours to take now

    async def _create(self, key: str) -> bool:
        if (info := self._wanted.get(key)) is None:
            return False
        lease = Lease.new(key, info)
        if (noted := self._noted.get(key)) is not None and lease.advances(noted.position, noted.sub):
            lease = lease.checkpointed(noted.position, noted.sub, noted.children)
        lease = lease.taken(self._me.id, self._me.run, self._endpoint)
        return await self._acquire(lambda: self._table.create_if_absent(lease))

    async def _take(self, seen: Lease) -> bool:
        return await self._acquire(lambda: self._table.take(seen, self._me.id, self._me.run, self._endpoint))

    async def _acquire(self, write: Callable[[], Awaitable[Outcome]]) -> bool:
        async with self._slots:
            sent_at = self._clock.monotonic()
            outcome = await write()
        if isinstance(outcome, Lost):
            return outcome.current is not None and outcome.current.owner == self._me.id  # an earlier take had arrived
        if self._clock.monotonic() < sent_at + self._timing.lease_timeout:
            self._begin(outcome.lease, sent_at)
        return True

    async def _ask(self, lease: Lease) -> bool:
        async with self._slots:
            await self._table.ask(lease, self._me.id)
        return False

    def _begin(self, lease: Lease, sent_at: float) -> None:
        key = lease.key
        keeper = Keeper(
            self._writing,
            lease,
            sent_at,
            noted=lambda: self._noted.get(key),
            read_until=partial(self._listener.read_until, key),
        )
        self._keepers[key] = keeper
        self.stats.taken += 1
        logger.info("lease %s taken by %s at %s", key, self._me.id, lease.checkpoint or "LATEST")
        task = asyncio.create_task(self._tend(key, keeper), name=f"lease {key}")
        self._tending.add(task)
        task.add_done_callback(self._tending.discard)
        if key in self._open and not self._stopping:
            self._listener.lease_taken(key)
            self._news.set()
        else:  # given up while the write was under way
            keeper.leave()

    async def _tend(self, key: str, keeper: Keeper) -> None:
        try:
            match await keeper.keep():
                case Ending.LEAVING:
                    if key in self._open and not self._stopping:  # not wanted for a moment, and wanted again since
                        self._listener.lease_lost(key, None)
                    freed = await keeper.release()
                    logger.info("lease %s %s by %s", key, "released" if freed else "left to expire", self._me.id)
                case Ending.ASKED:
                    heir = keeper.lease.handover_to
                    logger.info("lease %s handed over by %s to %s", key, self._me.id, heir)
                    self._listener.lease_lost(key, heir)
                    await keeper.release()
                case Ending.LOST:
                    self.stats.lost_to_others += 1
                    logger.warning("lease %s of %s lost to %s", key, self._me.id, keeper.lost_to or "nobody")
                    self._listener.lease_lost(key, keeper.lost_to)
                case Ending.UNREACHABLE:
                    self.stats.not_renewed += 1
                    logger.warning("lease %s of %s lost: not renewed in time: %s", key, self._me.id, keeper.why_late)
                    self._listener.lease_lost(key, None)
                    if isinstance(keeper.trouble, LeaseTableError):
                        self._fail(keeper.trouble)
                    elif self._stopping:
                        await keeper.release()
        except Exception as error:
            self._fail(error)
        finally:
            # Only now: until its release is through, the row must not be taken again.
            del self._keepers[key]
            self._wake.set()
            self._news.set()

    async def _clean(self, scan: Scan, sightings: Mapping[str, Sighting]) -> None:
        """Finish and delete the rows of parents that are read; only sometimes, and never what is wanted."""
        now = self._clock.monotonic()
        if self._cleanup_at is not None and now < self._cleanup_at:
            return
        left = scan.leases.keys() - self._open
        self._cleanup_at = now + CLEANUP_INTERVAL if left else None
        free = {key for key in left if scan.leases[key].owner is None or self._observer.expired(sightings[key], now)}
        try:
            passed = passed_parents(scan.leases, free - self._keepers.keys(), self._wanted) if self._complete else []
            for lease, children in passed:
                await self._table.apply(lease, partial(Lease.released_at, position=SHARD_END, children=children))
                logger.info("lease %s finished: its shard was read to its end in an earlier run", lease.key)
            for lease in finished_parents(scan.leases, free - self._keepers.keys()):
                await self._table.delete(lease)
                logger.info("lease %s deleted: its shard and what came before its children is read", lease.key)
        except LeaseError as error:
            logger.warning("rows of finished shards stay for now: %s", error)

    def _already_running(self, rival: Sighting, now: float) -> AlreadyRunningError:
        return AlreadyRunningError(
            f"{self._subject} is already read by {readable(rival.lease.owner or '')} (run {rival.lease.run}), "
            f"last seen {now - rival.changed_at:.0f} s ago renewing lease {rival.lease.key}; "
            "stop that query, or give this one an application of its own"
        )

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, LeaseError):
            logger.error("the lease loop failed", exc_info=error)
            cause, error = error, LeaseError(f"{self._subject}: the lease loop failed: {error!r}")
            error.__cause__ = cause
        if self._failure is None:
            self._failure = error
            logger.error("%s", error)
            self._listener.failed(error)
        self._news.set()
