"""A fetcher outside the run's process: requests work from the run, fetches, and reports the fetched events to the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from msgspec.structs import replace

from kinesis_efo import __version__
from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.wire import pack_error
from kinesis_efo.clock import Clock, within
from kinesis_efo.cluster.reporter import Reporter
from kinesis_efo.decisions.losses import NO_FACTS, Facts
from kinesis_efo.errors import FetcherUnreachableError, KinesisEfoError
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.background import all_of
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.fetcher import Fetcher
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Order, Report, ReportReply, RowKey, Work, WorkRequest
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.manifest import StreamRef
from kinesis_efo.options import Bounds
from kinesis_efo.positions import Position, ShardKey

logger = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 1.0
_LEAST_WAIT_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.5


class Planner(Protocol):
    """The calls of a fetcher to its run. They raise `FetcherUnreachableError` if the run does not respond."""

    async def work(self, request: WorkRequest) -> Work:
        """Request this fetcher's shards. The reply also contains each shard's `Order`, which specifies the events to buffer."""

    async def report(self, report: Report) -> ReportReply:
        """Report changes in this fetcher's shards, such as new events."""


@dataclass(frozen=True, slots=True)
class FetcherIdentity:
    """The identity of a fetcher: its number in the run (`place`), the name of its host for messages, and its address for tasks."""

    place: int
    host: str
    address: FetcherAddress


class Assignment:
    """The shards that the run has assigned to this fetcher, and until when it may read them; implements `Coordinator`.

    The time limit starts when the fetcher sends a request, and is measured with the fetcher's clock. So the fetcher stops before another
    run can acquire the lease, even if the reply took long or the process was suspended. `failure` is the error that ended the fetcher.

    Args:
        request_report: Makes the fetcher send a report. `renew` is called if the reply shows that the run considers the fetcher alive.
    """

    def __init__(self, clock: Clock, request_report: Callable[[], None]) -> None:
        self.failure = Failure()
        self.failures: dict[str, bytes] = {}  # Serialized errors of individual queries, by the query's name
        self.revision = 0
        self._clock = clock
        self._request_report = request_report
        self._shards: frozenset[ShardKey] = frozenset()
        self._orders: dict[ShardKey, Order] = {}
        self._until: dict[str, float] = {}
        self._renewed_at = -inf
        self._renewed = Signal()

    def follow(self, work: Work, asked_at: float) -> frozenset[ShardKey]:
        """Apply the reply to a request sent after `asked_at` (monotonic seconds). Return the shards that were withdrawn."""
        self._until = {stream: asked_at + seconds for stream, seconds in work.seconds.items()}
        before = self._shards
        if work.shards is not None:
            self._shards, self.revision = frozenset(work.shards), work.revision
        for key, order in work.orders:
            known = self._orders.get(key)
            if order.start is not None:
                self._orders[key] = order
            elif known is not None:
                self._orders[key] = replace(known, keep=order.keep, kept=order.kept)
        self._orders = {key: order for key, order in self._orders.items() if key in self._shards}
        self.renew(asked_at)
        return before - self._shards

    def orders(self, shards: Iterable[ShardKey]) -> dict[RowKey, Order | None]:
        """Return the instruction (`Order`) for each given shard that still belongs to this fetcher."""
        return {RowKey(None, key): self._orders[key] for key in shards if key in self._orders}

    def renew(self, asked_at: float) -> None:
        """Record that the run replied to a request sent after `asked_at`: it considers this fetcher alive, and its shards are current."""
        self._renewed_at = max(self._renewed_at, asked_at)
        self._renewed.notify()

    def clear(self) -> frozenset[ShardKey]:
        """Drop all shards, since other fetchers may be reading them by now. Return the shards to close."""
        shards = self._shards
        self._shards, self._orders, self._until, self.revision = frozenset(), {}, {}, 0
        return shards

    def expired(self) -> frozenset[ShardKey]:
        """Return the shards that may no longer be read, because the run has not replied in time."""
        return frozenset(key for key in self._shards if not self.may_read(key))

    @property
    def streams(self) -> set[str]:
        """The logical names of the streams of this fetcher's shards."""
        return {key.stream for key in self._shards}

    @property
    def next_expiry(self) -> float:
        """The earliest time (monotonic seconds) at which reading a stream must stop unless the run replies; infinity without shards."""
        return min((self._until[stream] for stream in self._until.keys() & self.streams), default=inf)

    # -- the methods of `Coordinator`, which the fetcher calls

    def may_read(self, shard: ShardKey) -> bool:
        return shard in self._shards and self._clock.monotonic() < self._until.get(shard.stream, -inf)

    async def may_open(self, shard: ShardKey) -> None:
        """Send a report, and wait until a reply confirms the shard: it may have been withdrawn during a disconnection or suspension."""
        now = self._clock.monotonic()
        while self._renewed_at < now or not self.may_read(shard):
            self._request_report()
            await self._renewed.wait()

    def refusal(self, shard: ShardKey, seconds: float) -> KinesisEfoError:
        """Return the error for a task whose shard this fetcher may not read. The task then requests the shard's current fetcher."""
        known = "the run has not replied recently" if shard in self._shards else "another fetcher reads it"
        return FetcherUnreachableError(f"shard {shard} has not been read here for {seconds:.0f} s: {known}")

    def facts(self, row: RowKey, position: Position) -> Facts:
        if (order := self._orders.get(row.shard)) is None:
            return NO_FACTS
        return order.known if order.start == position else Facts(accepted=order.known.accepted)

    def failed(self, row: RowKey, error: KinesisEfoError) -> None:
        """Report an error to the run. If `row` has a query, only this query fails; otherwise, the fetcher fails."""
        if row.query is None:
            self.failure.set(error)
        else:
            self.failures.setdefault(row.query, pack_error(error))
            self._request_report()


class RemoteFetcher:
    """Fetches the shards that the run assigns to it, until the run has ended or has not replied for `give_up` seconds.

    Args:
        open_stream: Opens a stream without listing its shards. Called once the run assigns shards of the stream.
        ends: The option `endingPosition`.
    """

    def __init__(
        self,
        identity: FetcherIdentity,
        fetcher: Fetcher,
        streams: Streams,
        planner: Planner,
        clock: Clock,
        new_name: Callable[[], str],
        give_up: float,
        open_stream: Callable[[StreamRef], Stream],
        ends: Bounds | None = None,
    ) -> None:
        self._identity = identity
        self._fetcher = fetcher
        self._streams = streams
        self._planner = planner
        self._clock = clock
        self._new_name = new_name
        self._give_up = give_up
        self._name = new_name()
        self._reporter = Reporter(fetcher, ends)
        self._assignment = Assignment(clock, self._reporter.wake)
        self._following = Signal()
        self._open_stream = open_stream
        self._further: asyncio.Queue[tuple[Work, set[ShardKey]]] = asyncio.Queue()
        self._reports = 0

    async def run(self) -> None:
        """Fetch until the run has ended. Raises `FetcherUnreachableError` if the run has not responded for too long."""
        self._streams.in_use = lambda: self._assignment.streams
        self._fetcher.start(self._assignment, self._reporter)
        tasks = [asyncio.create_task(each) for each in (self._work(), self._report(), self._expire(), self._open())]
        try:
            # When one task ends, end all tasks: a fetcher that no longer reports, for example, must not keep its shards.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._fetcher.stop()
        # Report that this fetcher has stopped: the run waits for its fetchers before it releases the leases.
        await self._planner.work(self._request(revision=0, done=0, wait=0.0))

    def _request(self, *, revision: int, done: int, wait: float) -> WorkRequest:
        identity = self._identity
        return WorkRequest(
            self._name,
            identity.place,
            identity.host,
            identity.address,
            self._fetcher.budget.limit,
            revision,
            done,
            wait,
            self._fetcher.reading,
            __version__,
        )

    async def _work(self) -> None:
        heard_at = self._clock.monotonic()
        done = 0
        while True:
            asked_at = self._clock.monotonic()
            # Send several requests before a lease expires: only a reply shows that the run has renewed the lease.
            wait = min(_WAIT_SECONDS, max(_LEAST_WAIT_SECONDS, (self._assignment.next_expiry - asked_at) / 3))
            request = self._request(revision=self._assignment.revision, done=done, wait=wait)
            try:
                work = await self._planner.work(request)
            except FetcherUnreachableError as error:
                silence = self._clock.monotonic() - heard_at
                if silence >= self._give_up:
                    raise FetcherUnreachableError(
                        f"the fetcher on {self._identity.host} has had no reply from the run for {silence:.0f} s and gives up: {error}"
                    ) from error
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            heard_at = self._clock.monotonic()
            match work.standing:
                case "over":
                    return
                case "standby":
                    await self._clock.sleep(_WAIT_SECONDS)
                case "unknown":
                    logger.warning(
                        "the run considered this fetcher dead and may have reassigned its shards; starting over"
                    )
                    await self._begin_anew()
                    self._name = self._new_name()
                    done = 0
                # Ignore the reply if `_expire` has dropped all shards since the request.
                case _ if request.revision == self._assignment.revision:
                    await self._follow(work, asked_at)
                    done = work.number

    async def _follow(self, work: Work, asked_at: float) -> None:
        end = self._assignment.follow(work, asked_at)
        self._following.notify()
        # Wait until the connections are closed, because the next request reports these shards as closed.
        await self._fetcher.close(RowKey(None, key) for key in end)
        known = {key for key, _ in work.orders if key.stream in self._streams.streams}
        self._fetcher.apply_orders(self._assignment.orders(known))
        if further := {key for key, _ in work.orders} - known:
            self._further.put_nowait((work, further))

    async def _open(self) -> None:
        """Open the streams of newly assigned shards, then read these shards. Runs as a separate task, which does not delay other shards."""
        while True:
            work, shards = await self._further.get()
            names = {key.stream for key in shards} - self._streams.streams.keys()
            await all_of(*(self._streams.add(name, self._open_stream(work.streams[name])) for name in names))
            self._fetcher.apply_orders(self._assignment.orders(shards))

    async def _begin_anew(self) -> None:
        await self._fetcher.close(RowKey(None, key) for key in self._assignment.clear())
        self._reporter.reset()
        self._reports = 0

    async def _expire(self) -> None:
        """Stop reading all shards whenever the run has not replied in time, because its lease may have expired."""
        while True:
            left = self._assignment.next_expiry - self._clock.monotonic()
            if left > 0:
                await within(self._clock, min(left, 3600.0), self._following.wait())
            elif expired := self._assignment.expired():
                logger.warning("the run has not replied for the duration of its lease: closed %d shards", len(expired))
                await self._begin_anew()
            else:
                await self._following.wait()

    async def _report(self) -> None:
        next_at = self._clock.monotonic()
        while True:
            if not self._reporter.waits:
                # Wait at most a second: new positions of idle shards have to be reported, too, but do not set the signal `news`.
                await within(self._clock, _WAIT_SECONDS, self._reporter.news.wait())
            if (early := next_at - self._clock.monotonic()) > 0:
                await self._clock.sleep(early)
            asked = self._reporter.waits
            shards = self._reporter.collect()
            # Add the error to every report, because the run may not have received an earlier report.
            failure = pack_error(error) if (error := self._assignment.failure.error) is not None else b""
            if not (shards or asked or failure):
                continue
            asked_at = self._clock.monotonic()
            self._reports += 1
            number, revision = self._reports, self._assignment.revision
            try:
                report = Report(self._name, number, shards, failure, dict(self._assignment.failures))
                reply = await self._planner.report(report)
            except FetcherUnreachableError:
                reply = ReportReply(known=False)
            next_at = asked_at + reply.pause
            if reply.known and not reply.again:
                if reply.revision == revision:
                    self._assignment.renew(asked_at)
                continue
            self._reporter.reset()
            self._reports = 0
            await self._clock.sleep(_RETRY_SECONDS)
