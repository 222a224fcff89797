"""Assigns the shards of a run to fetchers of other processes, and answers these and the tasks. It lives in the run's event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.wire import unpack_error
from kinesis_efo.clock import Clock, within
from kinesis_efo.cluster.members import Member, Members
from kinesis_efo.cluster.shares import Rates
from kinesis_efo.cluster.snapshots import ShardSnapshots
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.feed import ShardListener
from kinesis_efo.fetcher.fetcher import Coordinator
from kinesis_efo.fetcher.streams import Streams
from kinesis_efo.fetcher.work import Report, ReportReply, Shard, ShardNews, WhereReply, WhereRequest, Work, WorkRequest
from kinesis_efo.positions import Position, ShardKey

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
_WITHDRAW_SECONDS: Final = 10.0
_REPORTS: Final = 200
"""Maximum number of reports a second from all fetchers. Without a limit, each event of a busy shard would cause a report."""


class Assignments:
    """Assigns the shards that are read to the present fetchers, and answers their calls.

    `seconds` returns for how many seconds a stream may still be read, until the run's lease ends. A fetcher that has sent no request for
    `timeout` seconds counts as dead; by then, it has stopped reading. `snapshots` has what fetchers have reported; that of a shard is
    dropped when the shard is taken from its fetcher. `listener` is told in which shards something happens.
    Set `coordinator`, the run, before the first call is answered. `changed` is notified when the fetcher of a shard changes, or a fetcher
    has closed a shard. `reached` has the shards to read, with the position up to which each is processed. `empty_since` is the monotonic
    time in seconds since which there has been no fetcher, if there is none.
    """

    def __init__(
        self,
        streams: Streams,
        seconds: Callable[[str], float],
        timeout: float,
        snapshots: ShardSnapshots,
        listener: ShardListener,
        clock: Clock,
    ) -> None:
        self.members: Final = Members(timeout)
        self.coordinator: Coordinator
        self.changed = Signal()
        self.reached: dict[ShardKey, Position] = {}
        self.stopping = False
        self.empty_since = clock.monotonic()
        self._streams = streams
        self._seconds = seconds
        self._snapshots = snapshots
        self._listener = listener
        self._clock = clock
        self._held: set[str] = set()
        self._withheld: frozenset[ShardKey] = frozenset()
        self._rates = Rates(clock.monotonic())

    # -- what is to be read

    @property
    def withholds(self) -> bool:
        """Whether shards that `let_go` closed have not been opened again."""
        return bool(self._withheld)

    def want(self, positions: Mapping[ShardKey, Position]) -> None:
        """Read new shards from these positions on, and open again those that `let_go` closed. Other shards are unaffected."""
        new = {key: position for key, position in positions.items() if key not in self.reached and not position.is_end}
        if not (new or self._withheld):
            return
        # Close shards that a fetcher still reads after `end` has removed them, because it would continue at its old position.
        still_read = frozenset(key for key in new if self.members.owner(key) is not None)
        self.reached |= new
        self._snapshots.begin(new)
        self._withheld = frozenset()
        if still_read:
            self._close(still_read)
        self.share()

    def restart(self, key: ShardKey, position: Position) -> None:
        """Read a shard again from a position on. Its present fetcher closes it first."""
        self.reached[key] = position
        self._close(frozenset((key,)))
        self.share()

    def end(self, key: ShardKey) -> None:
        """Stop reading a shard. Its fetcher is told with the next change of its shards."""
        del self.reached[key]
        self._snapshots.end(key)

    def allow(self, stream: str) -> None:
        """Allow a stream to be read."""
        self._held.add(stream)
        self.share()

    def forbid(self, stream: str) -> None:
        """Forbid a stream to be read."""
        self._held.discard(stream)
        self.share()

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """Close the subscriptions of shards until the next `want`. Waits at most 10 seconds for the fetchers to do so."""
        self._withheld = frozenset(shards)
        self.share()
        give_up_at = self._clock.monotonic() + _WITHDRAW_SECONDS
        while self.members.closing & self._withheld and self._clock.monotonic() < give_up_at:
            await within(self._clock, TICK_SECONDS, self.changed.wait())

    # -- the calls of fetchers and tasks

    async def work(self, request: WorkRequest) -> Work:
        """Reply to a fetcher's request for work, as soon as there is something new or the time of the request is over."""
        name = request.name
        if self.stopping:
            if not request.revision:
                self.lose(name)
            return Work("over")
        is_new = self.members.get(name) is None
        member = self.members.ask(request, self._clock.monotonic())
        if isinstance(member, Work):
            return member
        if is_new:
            logger.info("fetcher %s has come", member)
            self.share()
        self.changed.notify()
        if member.revision == request.revision and not member.unsent(self.reached):
            await within(self._clock, request.wait, member.changed.wait())
        if self.stopping:
            return Work("over")
        return self._work(member, request.revision) if self.members.get(name) is member else Work("unknown")

    def _work(self, member: Member, revision: int) -> Work:
        shards, refs = None, {}
        if member.revision != revision:
            shards = [
                Shard(key, start, self.coordinator.known(key, start))
                for key in sorted(member.shards)
                if (start := self.reached.get(key)) is not None
            ]
            refs = {name: self._streams.stream(name).ref for name in {shard.key.stream for shard in shards}}
        done = member.send(self.reached)
        return Work(
            "working",
            member.revision,
            shards,
            {stream: max(0.0, self._seconds(stream)) for stream in self._streams.streams},
            member.number,
            done,
            self._snapshots.shared,
            refs,
        )

    async def report(self, report: Report) -> ReportReply:
        """Handle a fetcher's report of what has arrived."""
        member = self.members.get(report.name)
        if member is None:
            return ReportReply(known=False)
        if not member.follows(report.number):
            return ReportReply(known=True, again=True, revision=member.revision)
        if report.number == 1:
            self._snapshots.forget_all_of(report.name)
        # Ignore late news of a shard that has moved to another fetcher.
        mine = [news for news in report.shards if news.key in self.reached and self.members.owner(news.key) is member]
        known = [self._note(member, news) for news in mine]
        if report.failure:
            error = unpack_error(report.failure)
            # Name the fetcher's host, because the cause may be only there.
            self.coordinator.failure.set(type(error)(f"{error} (the fetcher on host {member.request.host} says so)"))
        pause = len(self.members) / _REPORTS
        return ReportReply(known=True, again=not all(known), revision=member.revision, pause=pause)

    def _note(self, member: Member, news: ShardNews) -> bool:
        """Handle the news of one shard; returns False if earlier news is missing."""
        key, size = news.key, self._snapshots.note(member.request.name, member.request.budget, news)
        if size is None:
            return False
        if self._snapshots.shared:
            # The fetcher will drop the events before this position, so a query that is further behind must not plan from them.
            self._snapshots.commit(key, self.reached[key])
        self._rates.add(key, size)
        if news.children:
            self._streams.learn(key, news.children)
        self._listener.touch((key,))
        if not self._snapshots.is_idle(key):
            self._listener.wake()
        return True

    async def where(self, request: WhereRequest) -> WhereReply:
        """Reply to a task with the fetchers of its shards, once all shards have one or the time of the request is over."""
        give_up_at = self._clock.monotonic() + request.wait
        while True:
            self.coordinator.failure.raise_if_set()
            found = [self.address(key) for key in request.shards]
            left = give_up_at - self._clock.monotonic()
            if None not in found or left <= 0:
                return WhereReply(found, len(self.members))
            await within(self._clock, min(left, TICK_SECONDS), self.changed.wait())

    def address(self, key: ShardKey) -> FetcherAddress | None:
        """The address of a shard's fetcher; None if the shard has none."""
        member = self.members.owner(key)
        return member.request.address if member is not None else None

    # -- changes

    def share(self) -> None:
        """Distribute the shards to the fetchers according to each shard's bytes per second."""
        before = {key: self.members.owner(key) for key in self.reached}
        self.members.share(self._rates.weights(self.reached), withheld=self._not_read())
        for key, owner in before.items():
            if owner is not None and self.members.owner(key) is not owner:
                self._snapshots.forget(key)
        self.changed.notify()

    def _close(self, shards: frozenset[ShardKey]) -> None:
        """Assign shards to no fetcher any more."""
        self.members.share(self._rates.weights(self.reached), withheld=self._not_read() | shards)
        for key in shards:
            self._snapshots.forget(key)

    def _not_read(self) -> frozenset[ShardKey]:
        return self._withheld | {key for key in self.reached if key.stream not in self._held}

    def measure(self) -> bool:
        """Compute each shard's bytes per second anew if that is due; returns whether it was."""
        return self._rates.tick(self._clock.monotonic())

    def lose(self, name: str) -> None:
        """Remove a fetcher that is dead or has ended. Call `share` afterwards to give its shards to other fetchers."""
        member = self.members.lose(name)
        if member is None:
            return
        self._snapshots.forget_all_of(name)
        if not len(self.members):
            self.empty_since = self._clock.monotonic()
        self.changed.notify()
        if not self.stopping:
            logger.warning("fetcher %s is gone; it read %d shards", member, len(member.shards))

    def dropped(self, name: str) -> None:
        """Remove a fetcher whose connection broke while it waited for work, because its process has ended or is cut off."""
        if not self.stopping and self.members.get(name) is not None:
            self.lose(name)
            self.share()

    def wake_all(self) -> None:
        """Answer the waiting requests of all fetchers now."""
        for member in self.members:
            member.changed.notify()

    async def all_gone(self) -> None:
        """Wait until the last fetcher is gone."""
        while len(self.members):
            await self.changed.wait()
