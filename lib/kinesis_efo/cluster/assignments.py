"""Assigns the shards of a run to fetchers of other processes. It lives in the run's event loop."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.clock import Clock, within
from kinesis_efo.cluster.members import FetcherSession, Member, Members, MemberState, MissingFetchers
from kinesis_efo.cluster.shares import Rates
from kinesis_efo.cluster.snapshots import ShardSnapshots
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.work import WorkRequest
from kinesis_efo.positions import Position, ShardKey

logger = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.5
_WITHDRAW_SECONDS: Final = 10.0


class Assignments:
    """Assigns the shards that are read to the present fetchers.

    Args:
        snapshots: What fetchers have reported of the shards. The snapshot of a shard is dropped when the shard is taken from its fetcher.
        missing: Told when the last fetcher is gone.
        timeout: Seconds without a request after which a fetcher counts as dead. By then, the fetcher has stopped reading.
        clock: Time.

    Attributes:
        changed: Notified when the fetcher of a shard changes, or a fetcher has closed a shard.
        reached: The shards to read, with the position up to which each is processed.
        stopping: Whether the run is ending.
        shared: Whether the run has several queries. Fetchers then restart no subscription for a task.
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
        """Whether shards that `let_go` closed have not been opened again."""
        return bool(self._withheld)

    def want(self, positions: Mapping[ShardKey, Position]) -> None:
        """Read new shards from these positions on, and open again those that `let_go` closed. Other shards are unaffected."""
        new = {key: position for key, position in positions.items() if key not in self.reached and not position.is_end}
        if not (new or self._withheld):
            return
        # Close shards that a fetcher still reads after `end` has removed them, because it would continue at its old position.
        still_read = frozenset(key for key in new if self._members.owner(key) is not None)
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
        """Stop reading a shard. Its fetcher learns that with the next change of the fetcher's shards."""
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
        while self._members.closing & self._withheld and self._clock.monotonic() < give_up_at:
            await within(self._clock, TICK_SECONDS, self.changed.wait())

    # -- the fetchers

    def ask(self, request: WorkRequest) -> tuple[MemberState, FetcherSession | None]:
        """Handle a fetcher's request for work. If the fetcher is new, it gets its part of the shards.

        Returns:
            The state of the fetcher, and its session if the state is `WORKING`.
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
        """The fetcher with this name, and its session; None if it is not present."""
        member, session = self._members.get(name), self._sessions.get(name)
        return None if member is None or session is None else (member, session)

    def owner(self, key: ShardKey) -> Member[FetcherAddress] | None:
        """The fetcher of a shard; None if the shard has none."""
        return self._members.owner(key)

    def address(self, key: ShardKey) -> FetcherAddress | None:
        """The address of a shard's fetcher; None if the shard has none."""
        member = self._members.owner(key)
        return member.address if member is not None else None

    def fetcher_of(self, key: ShardKey) -> str | None:
        """The name of a shard's fetcher for tools; None if the shard has none."""
        member = self._members.owner(key)
        return f"{member.place} on {member.host}" if member is not None else None

    def fetchers(self) -> list[tuple[str, int]]:
        """The host of each fetcher, with the number of its shards."""
        return [(member.host, len(member.shards)) for member in self._members]

    def __len__(self) -> int:
        """The number of fetchers."""
        return len(self._members)

    @property
    def room(self) -> int:
        """Bytes that all fetchers together may buffer."""
        return sum(session.budget for session in self._sessions.values())

    @property
    def reading(self) -> bool:
        """Whether a task is reading a range, as the fetchers' last requests say. Thread-safe."""
        return any(session.reading for session in list(self._sessions.values()))

    def silent(self, seconds: float | None = None) -> list[Member[FetcherAddress]]:
        """The fetchers that have sent no request for `seconds`; by default, those that count as dead."""
        return self._members.silent(self._clock.monotonic(), seconds)

    # -- changes

    def share(self) -> None:
        """Distribute the shards to the fetchers according to each shard's bytes per second."""
        before = {key: self._members.owner(key) for key in self.reached}
        self._members.share(self._rates.weights(self.reached), withheld=self._not_read())
        for key, owner in before.items():
            if owner is not None and self._members.owner(key) is not owner:
                self._snapshots.forget(key)
        self.changed.notify()

    def _close(self, shards: frozenset[ShardKey]) -> None:
        """Take shards from their fetchers."""
        self._members.share(self._rates.weights(self.reached), withheld=self._not_read() | shards)
        for key in shards:
            self._snapshots.forget(key)

    def _not_read(self) -> frozenset[ShardKey]:
        return self._withheld | {key for key in self.reached if key.stream not in self._held}

    def count(self, key: ShardKey, size: int) -> None:
        """Count received bytes of a shard."""
        self._rates.add(key, size)

    def measure(self) -> bool:
        """Compute each shard's bytes per second anew if that is due; returns whether it was."""
        return self._rates.tick(self._clock.monotonic())

    def lose(self, name: str) -> None:
        """Remove a fetcher that is dead or has ended. Call `share` afterwards to give its shards to other fetchers."""
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
        """Answer the waiting requests of all fetchers now."""
        for session in self._sessions.values():
            session.changed.notify()

    async def all_gone(self) -> None:
        """Wait until the last fetcher is gone."""
        while len(self._members):
            await self.changed.wait()

    def _tell(self, name: str) -> None:
        if (session := self._sessions.get(name)) is not None:
            session.changed.notify()
