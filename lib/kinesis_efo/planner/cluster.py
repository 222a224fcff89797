"""The shards of a run, fetched by other processes: `fetchers=N`.

The fetchers ask for work and report what has arrived, so the planner waits for none of them: it plans from what it was told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

from kinesis_efo.clock import Clock, within
from kinesis_efo.failure import Failure
from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.background import all_of, in_background
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.coordinator import Coordinator
from kinesis_efo.fetcher.event_index import EventIndex
from kinesis_efo.fetcher.messages import unpack_error
from kinesis_efo.fetcher.micro_batches import MicroBatchPlanner
from kinesis_efo.fetcher.progress import ShardProgress
from kinesis_efo.fetcher.shard_watch import ShardWatch
from kinesis_efo.fetcher.status import ShardStatus
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Report, ReportReply, Shard, ShardNews, WhereReply, WhereRequest, Work, WorkRequest
from kinesis_efo.planner.members import FetcherSession, Member, Members, MemberState, MissingFetchers
from kinesis_efo.planner.shares import Rates
from kinesis_efo.planner.snapshot import ShardSnapshot
from kinesis_efo.positions import LastRecord, Offset, Position, ShardKey, ShardRange

logger = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 1.5
"""A fetcher asks at least every second. One that is late is either paused or cut off, or dead: then its port is closed."""
_REPORTS: Final = 200
"""Reports a second, of all fetchers. Without a bound, every event of a busy shard is one: the planner would do nothing else."""
_GOODBYE_SECONDS: Final = 3.0
_PATIENCE: Final = 6
"""Times `leaseTimeout`: how long a query bears that it has no fetcher."""
_WITHDRAW_SECONDS: Final = 10.0


class Cluster:
    """The fetchers of a run.

    Args:
        streams: What the query reads.
        seconds: For how long a stream may be read: until the run's lease ends.
        timeout: Seconds after which a fetcher that is not heard of counts as dead; it has stopped reading by then.
        clock: Time.
        gone: Tells whether nobody listens at an address any more, for certain.
        excuse: Why no fetcher may have come up, for messages.
        fetch_here: Starts a fetcher in this process, and tells whether it has. Called once, when there has been none for half of the
            time after which the query fails.
        max_skew: See `MicroBatchPlanner`.
    """

    def __init__(
        self,
        streams: Streams,
        seconds: Callable[[str], float],
        timeout: float,
        clock: Clock,
        *,
        gone: Callable[[FetcherAddress], Coroutine[Any, Any, bool]],
        excuse: Callable[[], str] = lambda: "",
        fetch_here: Callable[[], bool] = lambda: False,
        max_skew: float | None = None,
    ) -> None:
        self._streams = streams
        self._seconds = seconds
        self._clock = clock
        self._gone = gone
        self._coordinator: Coordinator
        self._members: Members[FetcherAddress] = Members(timeout, self._changed)
        self._sessions: dict[str, FetcherSession] = {}
        self._snapshots: dict[ShardKey, ShardSnapshot] = {}
        self._open: dict[ShardKey, Position] = {}
        self._begun: dict[ShardKey, Position] = {}
        self._held: set[str] = set()
        self._withheld: frozenset[ShardKey] = frozenset()
        self._rates = Rates(clock.monotonic())
        self._owners = Signal()
        self._micro_batches = MicroBatchPlanner(self, clock, self._check, max_skew)
        self._watch = ShardWatch(streams, clock, lambda _stream: self._micro_batches.wake())
        self._missing = MissingFetchers(_PATIENCE * timeout, clock.monotonic(), fetch_here, excuse)
        self._failure: Failure
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    # -- what the planner asks

    def start(self, coordinator: Coordinator) -> None:
        """See `Fetching`."""
        self._coordinator, self._failure = coordinator, coordinator.failure
        self._failure.on_set(self._micro_batches.wake)
        self._failure.on_set(self._owners.notify)
        self._tasks = [
            in_background(self._watch.run(), "watching the shards", self._failure),
            in_background(self._run(), "watching the fetchers", self._failure),
        ]

    async def stop(self) -> None:
        """See `Fetching`. The fetchers close their subscriptions, and say so."""
        self._stopping = True
        self._change_all()
        await within(self._clock, _GOODBYE_SECONDS, self._all_gone())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def expect(self, offset: Offset) -> None:
        """See `Fetching`."""
        self._want(offset)

    async def poll(self, offset: Offset, max_bytes: int, max_records: int, at_most: float) -> list[ShardProgress]:
        """See `Fetching`."""
        self._want(offset)
        return await self._micro_batches.poll(offset, max_bytes, max_records, at_most)

    async def commit(self, offset: Offset) -> Mapping[ShardKey, LastRecord]:
        """See `Fetching`."""
        self._check()
        records: dict[ShardKey, LastRecord] = {}
        moved = False
        for key, position in offset.items():
            before = self._open.get(key, position)
            if before == position or not position.reaches(before):
                continue
            moved = True
            if position.is_end:
                del self._open[key]
                self._begun.pop(key, None)
                self._snapshots.pop(key, None)
                continue
            self._open[key] = position
            snapshot = self._snapshots.get(key)
            if snapshot is not None and (record := snapshot.commit(position)) is not None:
                records[key] = record
        # Children that a later offset has begun are still to be read.
        if left := self._open.keys() - offset.keys() - (self._micro_batches.offset or offset).keys():
            moved = True
            for key in left:
                del self._open[key]
                self._begun.pop(key, None)
                self._snapshots.pop(key, None)
        if moved:
            self._change_all()
        return records

    def last_record(self, wanted: ShardRange) -> int | None:
        """See `Fetching`."""
        snapshot = self._snapshots.get(wanted.key)
        return None if snapshot is None or not snapshot.index.covers(wanted.after) else snapshot.last_record(wanted)

    def begin(self, stream: str) -> None:
        """See `Fetching`."""
        self._held.add(stream)
        self._share()

    def end(self, stream: str) -> None:
        """See `Fetching`."""
        self._held.discard(stream)
        self._share()

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """See `Fetching`."""
        self._withheld = frozenset(shards)
        self._share()
        give_up_at = self._clock.monotonic() + _WITHDRAW_SECONDS
        while self._members.closing & self._withheld and self._clock.monotonic() < give_up_at:
            await within(self._clock, _TICK_SECONDS, self._owners.wait())

    def fetcher_of(self, key: ShardKey) -> str | None:
        """See `Fetching`."""
        member = self._members.owner(key)
        return f"{member.place} on {member.host}" if member is not None else None

    def statuses(self, stream: str | None = None) -> list[ShardStatus]:
        """See `Fetching`. By what the fetchers have said last."""
        now = self._clock.monotonic()
        return [
            snapshot.status(key, self.fetcher_of(key), now)
            for key, snapshot in self._snapshots.items()
            if stream in (None, key.stream)
        ]

    def read_until(self, key: ShardKey, position: Position) -> float | None:
        """See `Fetching`."""
        snapshot = self._snapshots.get(key)
        return snapshot.read_until if snapshot is not None and snapshot.index.end == position else None

    def tip(self, key: ShardKey) -> Position | None:
        """See `Fetching`."""
        snapshot = self._snapshots.get(key)
        return snapshot.tip if snapshot is not None else None

    @property
    def room(self) -> int:
        """Bytes that the fetchers may buffer."""
        return sum(session.budget for session in self._sessions.values())

    @property
    def reading(self) -> bool:
        """Whether a task reads a range at this moment, by what fetchers said last."""
        return any(session.reading for session in list(self._sessions.values()))

    def address(self, key: ShardKey) -> FetcherAddress | None:
        """Who reads a shard now; None while nobody does."""
        member = self._members.owner(key)
        return member.address if member is not None else None

    def fetchers(self) -> list[tuple[str, int]]:
        """The hosts of the fetchers, with the number of shards that each reads."""
        return [(member.host, len(member.shards)) for member in self._members]

    # -- what fetchers and tasks ask

    async def work(self, request: WorkRequest) -> Work:
        """Tell a fetcher what it is to do, once there is something new."""
        name, now = request.name, self._clock.monotonic()
        if self._stopping:
            if not request.revision:
                self._lose(name)
            return Work("over")
        known = self._members.get(name) is not None
        standing = self._members.ask(name, request.place, request.host, request.address, request.revision, now)
        if standing is not MemberState.WORKING:
            return Work(standing.value)
        session = self._sessions.setdefault(name, FetcherSession(request.budget))
        session.reading = request.reading
        if not known:
            logger.info("fetcher %d on %s has come", request.place, request.host)
            self._share()
        self._owners.notify()
        session.heard(request.done)
        if not self._has_news(request, session):
            await within(self._clock, request.wait, session.changed.wait())
        member = self._members.get(name)
        if self._stopping:
            return Work("over")
        if member is None:
            return Work(MemberState.UNKNOWN.value)
        return self._work(member, session, request.revision)

    def _has_news(self, request: WorkRequest, session: FetcherSession) -> bool:
        member = self._members.get(request.name)
        return (
            member is None
            or member.revision != request.revision
            or session.number == 0
            or bool(session.untold(member.shards, self._open))
        )

    def _work(self, member: Member[FetcherAddress], session: FetcherSession, revision: int) -> Work:
        shards = None
        if member.revision != revision:
            shards = [
                Shard(*key, str(start), self._coordinator.read_until(key, start))
                for key in sorted(member.shards)
                if (start := self._open.get(key)) is not None
            ]
        done = session.tell(session.untold(member.shards, self._open))
        return Work(
            MemberState.WORKING.value,
            member.revision,
            shards,
            {stream: max(0.0, self._seconds(stream)) for stream in self._streams.streams},
            session.number,
            [(*key, str(position)) for key, position in done.items()],
        )

    async def report(self, report: Report) -> ReportReply:
        """Take note of what has arrived at a fetcher."""
        member, session = self._members.get(report.name), self._sessions.get(report.name)
        if member is None or session is None:
            return ReportReply(known=False)
        if not session.follows(report.number):
            return ReportReply(known=True, again=True, revision=member.revision)
        if report.number == 1:
            for key in [key for key, snapshot in self._snapshots.items() if snapshot.owner == member.name]:
                del self._snapshots[key]
        # Ignore late reports about a shard that has moved to another fetcher.
        known = [self._note(member.name, news) for news in report.shards if self._owns(member, news.key)]
        if report.failure:
            error = unpack_error(report.failure)
            # What it lacks, others may have.
            self._failure.set(type(error)(f"{error} (the fetcher on host {member.host} says so)"))
        pause = len(self._members) / _REPORTS
        return ReportReply(known=True, again=not all(known), revision=member.revision, pause=pause)

    def _owns(self, member: Member[FetcherAddress], key: ShardKey) -> bool:
        return key in self._open and self._members.owner(key) is member

    def _note(self, name: str, news: ShardNews) -> bool:
        """Take note of what has happened in one shard; False if the beginning is missing."""
        key, snapshot = news.key, self._snapshots.get(news.key)
        if news.start is not None:
            snapshot = self._snapshots[key] = ShardSnapshot(name, Position.parse(news.start))
            if snapshot.index.start == self._begun.get(key):
                # The query began there itself, so that no number which it knows lies before.
                snapshot.index.vouch(0)
        elif snapshot is None or snapshot.owner != name:
            return False
        self._rates.add(key, snapshot.append(news.entries, self._clock.monotonic()))
        snapshot.note(news, self._clock.monotonic())
        if news.children:
            self._streams.stream(key.stream).learn(key.shard, [child.parsed() for child in news.children])
            self._watch.look_soon()
        self._micro_batches.touch((key,))
        if not snapshot.index.idle:
            self._micro_batches.wake()
        return True

    async def where(self, request: WhereRequest) -> WhereReply:
        """Tell a task who reads some shards, once all of them are read."""
        keys = [ShardKey(*shard) for shard in request.shards]
        give_up_at = self._clock.monotonic() + request.wait
        while True:
            self._check()
            found = [self.address(key) for key in keys]
            left = give_up_at - self._clock.monotonic()
            if None not in found or left <= 0:
                return WhereReply(found, len(self._members))
            await within(self._clock, min(left, _TICK_SECONDS), self._owners.wait())

    def dropped(self, name: str) -> None:
        """Take note that a fetcher's connection broke while it waited for work: its process has ended, or is cut off."""
        if not self._stopping and self._members.get(name) is not None:
            self._lose(name)
            self._share()

    # -- what the micro-batch planner asks

    def buffered(self, key: ShardKey, position: Position) -> EventIndex | None:
        """See `Buffers`."""
        snapshot = self._snapshots.get(key)
        return snapshot.index if snapshot is not None and snapshot.index.covers(position) else None

    def millis_behind(self, key: ShardKey) -> int | None:
        """See `Buffers`."""
        snapshot = self._snapshots.get(key)
        return snapshot.behind if snapshot is not None else None

    def quiet(self, key: ShardKey) -> float:
        """See `Buffers`."""
        snapshot = self._snapshots.get(key)
        return snapshot.quiet(self._clock.monotonic()) if snapshot is not None else 0.0

    def budgets(self, keys: Collection[ShardKey]) -> Iterable[tuple[Collection[ShardKey], int]]:
        """See `Buffers`."""
        groups: dict[str, list[ShardKey]] = {}
        for key in keys:
            groups.setdefault(self._snapshots[key].owner, []).append(key)
        return [(group, self._sessions[name].budget) for name, group in groups.items() if name in self._sessions]

    # -- who reads what

    def _want(self, offset: Offset) -> None:
        if offset is self._micro_batches.offset and not self._withheld:
            return
        new = {key: position for key, position in offset.items() if key not in self._open and not position.is_end}
        if not (new or self._withheld):
            return
        self._open |= new
        self._begun |= new
        self._withheld = frozenset()
        self._share()

    def _share(self) -> None:
        before = {key: self._members.owner(key) for key in self._open}
        withheld = self._withheld | {key for key in self._open if key.stream not in self._held}
        self._members.share(self._rates.weights(self._open), withheld=withheld)
        for key, owner in before.items():
            if owner is not None and self._members.owner(key) is not owner:
                self._snapshots.pop(key, None)
        self._owners.notify()

    def _lose(self, name: str) -> None:
        member = self._members.lose(name)
        self._sessions.pop(name, None)
        if member is None:
            return
        for key in [key for key, snapshot in self._snapshots.items() if snapshot.owner == name]:
            del self._snapshots[key]
        if not len(self._members):
            self._missing.begin(self._clock.monotonic())
        self._owners.notify()
        if not self._stopping:
            logger.warning("fetcher %d on %s is gone; it read %d shards", member.place, member.host, len(member.shards))

    def _changed(self, name: str) -> None:
        if (session := self._sessions.get(name)) is not None:
            session.changed.notify()

    def _change_all(self) -> None:
        for session in self._sessions.values():
            session.changed.notify()

    async def _all_gone(self) -> None:
        while len(self._members):
            await self._owners.wait()

    async def _run(self) -> None:
        while True:
            await self._clock.sleep(_TICK_SECONDS)
            ended = await self._ended()
            # Probing takes time, in which some have asked and others have been silent for too long.
            now = self._clock.monotonic()
            late = {member.name for member in self._members.silent(now, _PROBE_SECONDS)}
            dead = {member.name for member in self._members.silent(now)} | (ended & late)
            for name in dead:
                self._lose(name)
            if self._rates.tick(now) or dead:
                self._share()
            if not len(self._members) and (error := self._missing.look(now)) is not None:
                self._failure.set(error)

    async def _ended(self) -> set[str]:
        """The fetchers whose process has ended, of those that are late. All are probed at once: each may take its time."""
        late = self._members.silent(self._clock.monotonic(), _PROBE_SECONDS)
        gone = await all_of(*(self._gone(member.address) for member in late))
        return {member.name for member, is_gone in zip(late, gone, strict=True) if is_gone}

    def _check(self) -> None:
        self._failure.raise_if_set()
