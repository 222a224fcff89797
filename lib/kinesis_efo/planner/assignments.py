"""Which fetcher of another process reads which shard of a run, and what each was told. It lives in the planner's event loop."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import Clock, within
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.work import WorkRequest
from kinesis_efo.planner.members import FetcherSession, Member, Members, MemberState, MissingFetchers
from kinesis_efo.planner.shares import Rates
from kinesis_efo.planner.snapshots import ShardSnapshots
from kinesis_efo.positions import Position, ShardKey

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
_WITHDRAW_SECONDS: Final = 10.0


class Assignments:
    """Assigns the shards that a query reads to the fetchers that are there.

    Args:
        snapshots: What fetchers have told of the shards. That of a shard is dropped when it is taken from its fetcher.
        missing: Learns when the last fetcher is gone.
        timeout: Seconds after which a fetcher that is not heard of counts as dead; it has stopped reading by then.
        clock: Time.

    Attributes:
        changed: Notified when somebody else may read a shard, or has closed one.
        reached: How far the query has come in each shard that is to be read.
        stopping: Whether the run ends.
        shared: Whether there are several queries: a fetcher goes back for none of their tasks.
    """

    def __init__(self, snapshots: ShardSnapshots, missing: MissingFetchers, timeout: float, clock: Clock) -> None:
        self.changed = Signal()
        self.reached: dict[ShardKey, Position] = {}
        self.stopping = False
        self.shared = False
        self._snapshots = snapshots
        self._missing = missing
        self._clock = clock
        self._members: Members[FetcherAddress] = Members(timeout, self._tell)
        self._sessions: dict[str, FetcherSession] = {}
        self._held: set[str] = set()
        self._withheld: frozenset[ShardKey] = frozenset()
        self._rates = Rates(clock.monotonic())

    # -- what is to be read

    @property
    def withholds(self) -> bool:
        """Whether shards were let go of that nobody has asked for since."""
        return bool(self._withheld)

    def want(self, positions: Mapping[ShardKey, Position]) -> None:
        """Begin to read shards from these positions on, and those again that were let go of. Others are read on where they are."""
        new = {key: position for key, position in positions.items() if key not in self.reached and not position.is_end}
        if not (new or self._withheld):
            return
        # A fetcher that was not told yet that a shard had ended would go on where it is.
        still_read = frozenset(key for key in new if self._members.owner(key) is not None)
        self.reached |= new
        self._snapshots.begin(new)
        self._withheld = frozenset()
        if still_read:
            self._close(still_read)
        self.share()

    def restart(self, key: ShardKey, position: Position) -> None:
        """Have a shard read anew from a position on: whoever reads it closes it first."""
        self.reached[key] = position
        self._close(frozenset((key,)))
        self.share()

    def end(self, key: ShardKey) -> None:
        """Take note that a shard is not to be read any more. Its fetcher is told with the next change of its shards."""
        del self.reached[key]
        self._snapshots.end(key)

    def allow(self, stream: str) -> None:
        """Let a stream be read."""
        self._held.add(stream)
        self.share()

    def forbid(self, stream: str) -> None:
        """Let nobody read a stream any more."""
        self._held.discard(stream)
        self.share()

    async def let_go(self, shards: Collection[ShardKey]) -> None:
        """Have the subscriptions of shards closed, until somebody asks for them again; waits for that, but not for long."""
        self._withheld = frozenset(shards)
        self.share()
        give_up_at = self._clock.monotonic() + _WITHDRAW_SECONDS
        while self._members.closing & self._withheld and self._clock.monotonic() < give_up_at:
            await within(self._clock, TICK_SECONDS, self.changed.wait())

    # -- who reads it

    def ask(self, request: WorkRequest) -> tuple[MemberState, FetcherSession | None]:
        """Take note of a fetcher that asks for work; it gets its part of the shards if it is new.

        Returns:
            What it is, and what it was told; None unless it works.
        """
        known = self._members.get(request.name) is not None
        standing = self._members.ask(
            request.name,
            request.place,
            request.host,
            request.address,
            request.revision,
            self._clock.monotonic(),
        )
        if standing is not MemberState.WORKING:
            return standing, None
        session = self._sessions.setdefault(request.name, FetcherSession(request.budget))
        session.reading = request.reading
        if not known:
            logger.info("fetcher %d on %s has come", request.place, request.host)
            self.share()
        self.changed.notify()
        return standing, session

    def working(self, name: str) -> tuple[Member[FetcherAddress], FetcherSession] | None:
        """A fetcher by its name, and what it was told; None if it is not there, or not any more."""
        member, session = self._members.get(name), self._sessions.get(name)
        return None if member is None or session is None else (member, session)

    def owner(self, key: ShardKey) -> Member[FetcherAddress] | None:
        """Who reads a shard now; None while nobody does."""
        return self._members.owner(key)

    def address(self, key: ShardKey) -> FetcherAddress | None:
        """How tasks reach whoever reads a shard now; None while nobody does."""
        member = self._members.owner(key)
        return member.address if member is not None else None

    def fetcher_of(self, key: ShardKey) -> str | None:
        """Who reads a shard now, for tools; None while nobody does."""
        member = self._members.owner(key)
        return f"{member.place} on {member.host}" if member is not None else None

    def fetchers(self) -> list[tuple[str, int]]:
        """The hosts of the fetchers, with the number of shards that each reads."""
        return [(member.host, len(member.shards)) for member in self._members]

    def __len__(self) -> int:
        """The number of fetchers that are there."""
        return len(self._members)

    @property
    def room(self) -> int:
        """Bytes that the fetchers may buffer."""
        return sum(session.budget for session in self._sessions.values())

    @property
    def reading(self) -> bool:
        """Whether a task reads a range at this moment, by what fetchers said last. May be asked in any thread."""
        return any(session.reading for session in list(self._sessions.values()))

    def silent(self, seconds: float | None = None) -> list[Member[FetcherAddress]]:
        """The fetchers that have not asked for this many seconds; by default those that count as dead."""
        return self._members.silent(self._clock.monotonic(), seconds)

    # -- changes

    def share(self) -> None:
        """Share the shards out anew, by what they bring."""
        before = {key: self._members.owner(key) for key in self.reached}
        self._members.share(self._rates.weights(self.reached), withheld=self._not_read())
        for key, owner in before.items():
            if owner is not None and self._members.owner(key) is not owner:
                self._snapshots.forget(key)
        self.changed.notify()

    def _close(self, shards: frozenset[ShardKey]) -> None:
        """Take some shards from whoever reads them."""
        self._members.share(self._rates.weights(self.reached), withheld=self._not_read() | shards)
        for key in shards:
            self._snapshots.forget(key)

    def _not_read(self) -> frozenset[ShardKey]:
        return self._withheld | {key for key in self.reached if key.stream not in self._held}

    def count(self, key: ShardKey, size: int) -> None:
        """Count bytes that a shard has brought."""
        self._rates.add(key, size)

    def measure(self) -> bool:
        """Measure what the shards bring, if that is due; returns whether it was."""
        return self._rates.tick(self._clock.monotonic())

    def lose(self, name: str) -> None:
        """Count a fetcher as dead, or as ended. Its shards are free; `share` gives them to others."""
        member = self._members.lose(name)
        self._sessions.pop(name, None)
        if member is None:
            return
        self._snapshots.forget_all_of(name)
        if not len(self._members):
            self._missing.begin(self._clock.monotonic())
        self.changed.notify()
        if not self.stopping:
            logger.warning("fetcher %d on %s is gone; it read %d shards", member.place, member.host, len(member.shards))

    def tell_all(self) -> None:
        """Answer all fetchers that wait for something new."""
        for session in self._sessions.values():
            session.changed.notify()

    async def all_gone(self) -> None:
        """Wait until no fetcher is there any more."""
        while len(self._members):
            await self.changed.wait()

    def _tell(self, name: str) -> None:
        if (session := self._sessions.get(name)) is not None:
            session.changed.notify()
