"""Answers tasks, and the fetchers in other processes. It lives in the run's event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.wire import unpack_error
from kinesis_efo.clock import Clock, within
from kinesis_efo.cluster.assignments import TICK_SECONDS, Assignments
from kinesis_efo.cluster.members import FetcherSession, Member, MemberState
from kinesis_efo.cluster.snapshots import ShardSnapshots
from kinesis_efo.fetcher.feed import ShardListener
from kinesis_efo.fetcher.fetcher import Coordinator
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import (
    Report,
    ReportReply,
    Shard,
    ShardNews,
    WhereReply,
    WhereRequest,
    Work,
    WorkRequest,
)
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import ShardKey

_REPORTS: Final = 200
"""Maximum number of reports a second from all fetchers. Without a limit, each event of a busy shard would cause a report."""


class FetcherSessions:
    """Answers the fetchers of a run, and the tasks that ask for the fetchers of shards.

    Args:
        streams: The streams to read.
        seconds: Returns for how many seconds a stream may still be read, until the run's lease ends.
        assignments: Which fetcher reads which shard.
        snapshots: What the fetchers have reported of the shards.
        shard_listener: Told in which shards something happens.
        clock: Time.
    """

    def __init__(
        self,
        streams: Streams,
        seconds: Callable[[str], float],
        assignments: Assignments,
        snapshots: ShardSnapshots,
        shard_listener: ShardListener,
        clock: Clock,
    ) -> None:
        self._streams = streams
        self._seconds = seconds
        self._assignments = assignments
        self._snapshots = snapshots
        self._shard_listener = shard_listener
        self._clock = clock
        self._coordinator: Coordinator

    def start(self, coordinator: Coordinator) -> None:
        """Set the run, before the first call is answered.

        Args:
            coordinator: The run.
        """
        self._coordinator = coordinator

    async def work(self, request: WorkRequest) -> Work:
        """Reply to a fetcher's request for work, as soon as there is something new or the time of the request is over."""
        name = request.name
        if self._assignments.stopping:
            if not request.revision:
                self._assignments.lose(name)
            return Work("over")
        standing, session = self._assignments.ask(request)
        if session is None:
            return Work(standing.value)
        session.heard(request.done)
        if not self._has_news(request, session):
            await within(self._clock, request.wait, session.changed.wait())
        if self._assignments.stopping:
            return Work("over")
        if (working := self._assignments.working(name)) is None:
            return Work(MemberState.UNKNOWN.value)
        return self._work(working[0], session, request.revision)

    def _has_news(self, request: WorkRequest, session: FetcherSession) -> bool:
        working = self._assignments.working(request.name)
        return (
            working is None
            or working[0].revision != request.revision
            or session.number == 0
            or bool(session.untold(working[0].shards, self._assignments.reached))
        )

    def _work(self, member: Member[FetcherAddress], session: FetcherSession, revision: int) -> Work:
        reached, shards = self._assignments.reached, None
        if member.revision != revision:
            shards = [
                Shard(key, start, self._coordinator.read_until(key, start))
                for key in sorted(member.shards)
                if (start := reached.get(key)) is not None
            ]
        done = session.tell(session.untold(member.shards, reached))
        return Work(
            MemberState.WORKING.value,
            member.revision,
            shards,
            {stream: max(0.0, self._seconds(stream)) for stream in self._streams.streams},
            session.number,
            list(done.items()),
            self._assignments.shared,
            {} if shards is None else self._refs({shard.key.stream for shard in shards}),
        )

    def _refs(self, names: Collection[str]) -> dict[str, StreamRef]:
        return {name: self._streams.stream(name).ref for name in names}

    async def report(self, report: Report) -> ReportReply:
        """Handle a fetcher's report of what has arrived."""
        if (working := self._assignments.working(report.name)) is None:
            return ReportReply(known=False)
        member, session = working
        if not session.follows(report.number):
            return ReportReply(known=True, again=True, revision=member.revision)
        if report.number == 1:
            self._snapshots.forget_all_of(member.name)
        # Ignore late news of a shard that has moved to another fetcher.
        known = [
            self._note(member.name, session.budget, news) for news in report.shards if self._owns(member, news.key)
        ]
        if report.failure:
            error = unpack_error(report.failure)
            # Name the fetcher's host, because the cause may be only there.
            self._coordinator.failure.set(type(error)(f"{error} (the fetcher on host {member.host} says so)"))
        pause = len(self._assignments) / _REPORTS
        return ReportReply(known=True, again=not all(known), revision=member.revision, pause=pause)

    def _owns(self, member: Member[FetcherAddress], key: ShardKey) -> bool:
        return key in self._assignments.reached and self._assignments.owner(key) is member

    def _note(self, name: str, budget: int, news: ShardNews) -> bool:
        """Handle the news of one shard; returns False if earlier news is missing."""
        key, size = news.key, self._snapshots.note(name, budget, news)
        if size is None:
            return False
        if self._assignments.shared:
            # The fetcher will drop the events before this position, so a query that is further behind must not plan from them.
            self._snapshots.commit(key, self._assignments.reached[key])
        self._assignments.count(key, size)
        if news.children:
            self._streams.learn(key, news.children)
        self._shard_listener.touch((key,))
        if not self._snapshots.is_idle(key):
            self._shard_listener.wake()
        return True

    async def where(self, request: WhereRequest) -> WhereReply:
        """Reply to a task with the fetchers of its shards, once all shards have one or the time of the request is over."""
        give_up_at = self._clock.monotonic() + request.wait
        while True:
            self._coordinator.failure.raise_if_set()
            found = [self._assignments.address(key) for key in request.shards]
            left = give_up_at - self._clock.monotonic()
            if None not in found or left <= 0:
                return WhereReply(found, len(self._assignments))
            await within(self._clock, min(left, TICK_SECONDS), self._assignments.changed.wait())

    def dropped(self, name: str) -> None:
        """Remove a fetcher whose connection broke while it waited for work, because its process has ended or is cut off."""
        if not self._assignments.stopping and self._assignments.working(name) is not None:
            self._assignments.lose(name)
            self._assignments.share()
