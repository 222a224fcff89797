"""Decides which fetcher of a run reads which shard. Does no I/O; the time is passed in.

A shard gets another fetcher only after its previous one is gone, or has confirmed that it closed the subscription.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from kinesis_efo.cluster.shares import share_out
from kinesis_efo.errors import FetcherError
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.positions import Position, ShardKey

logger = logging.getLogger(__name__)

Address = TypeVar("Address")


class MemberState(Enum):
    """The state of a fetcher that asks for work.

    `STANDBY`: another attempt of its Spark task is alive; the fetcher asks again. `UNKNOWN`: the fetcher counted as dead, and others may
    have its shards; it has to close everything, and ask as a new fetcher.
    """

    WORKING = "working"
    STANDBY = "standby"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Member(Generic[Address]):
    """A fetcher that has asked for work.

    Attributes:
        name: A unique name, which the fetcher has chosen.
        place: Its number among the run's fetchers. Another attempt of the same Spark task has the same number.
        host: The name of its host, for messages.
        address: Its address for tasks.
        heard_at: The time of its last request, monotonic seconds.
        shards: The shards that it may read.
        revision: Grows whenever `shards` changes.
    """

    name: str
    place: int
    host: str
    address: Address
    heard_at: float
    shards: set[ShardKey] = field(default_factory=set)
    revision: int = 1


class Members(Generic[Address]):
    """The fetchers of a run.

    Args:
        timeout: Seconds without a request after which a fetcher counts as dead. It must have stopped reading by then.
        changed: Called with a fetcher's name when its shards have changed.
    """

    def __init__(self, timeout: float, changed: Callable[[str], None] = lambda _name: None) -> None:
        self._timeout = timeout
        self._changed = changed
        self._members: dict[str, Member[Address]] = {}
        self._wanted: dict[ShardKey, str] = {}
        self._leaving: dict[ShardKey, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member[Address]]:
        return iter(list(self._members.values()))

    def get(self, name: str) -> Member[Address] | None:
        """A fetcher by its name; None if it is not present."""
        return self._members.get(name)

    def owner(self, shard: ShardKey) -> Member[Address] | None:
        """The fetcher that may read a shard; None if none may."""
        name = self._wanted.get(shard)
        member = self._members.get(name) if name is not None else None
        return member if member is not None and shard in member.shards else None

    def ask(self, name: str, place: int, host: str, address: Address, obeyed: int, now: float) -> MemberState:
        """Handle a fetcher's request for work; see `Member`.

        Args:
            obeyed: The revision of its shards that the fetcher has applied; 0 if the fetcher reads nothing.
            now: Monotonic time, seconds.
        """
        member = self._members.get(name)
        if member is None:
            if obeyed:
                return MemberState.UNKNOWN
            if any(other.place == place for other in self._members.values()):
                return MemberState.STANDBY
            member = self._members[name] = Member(name, place, host, address, now)
        member.heard_at = now
        self._free(shard for shard, (who, until) in self._leaving.items() if who == name and until <= obeyed)
        return MemberState.WORKING

    def lose(self, name: str) -> Member[Address] | None:
        """Remove a fetcher and return it; None if it is not present. Call `share` afterwards to give its shards to other fetchers."""
        member = self._members.pop(name, None)
        if member is not None:
            self._free(shard for shard, (who, _) in self._leaving.items() if who == name)
        return member

    def silent(self, now: float, seconds: float | None = None) -> list[Member[Address]]:
        """The fetchers that have sent no request for `seconds`; by default, those that count as dead."""
        limit = self._timeout if seconds is None else seconds
        return [member for member in self._members.values() if now - member.heard_at >= limit]

    def share(self, weights: Mapping[ShardKey, float], *, withheld: Collection[ShardKey] = ()) -> None:
        """Distribute the shards, and move as few as possible.

        Args:
            weights: Every shard to read, with its cost.
            withheld: Shards that no fetcher may read now.
        """
        self._wanted = {
            shard: name
            for shard, name in share_out(weights, self._members.keys(), self._wanted).items()
            if shard not in withheld
        }
        for member in self._members.values():
            if away := {shard for shard in member.shards if self._wanted.get(shard) != member.name}:
                self._change(member, member.shards - away)
                self._leaving |= dict.fromkeys(away, (member.name, member.revision))
        self._hand_out(self._wanted)

    @property
    def closing(self) -> frozenset[ShardKey]:
        """Shards that were taken from a fetcher that has not confirmed yet that it closed them."""
        return frozenset(self._leaving)

    def _free(self, closed: Iterable[ShardKey]) -> None:
        shards = list(closed)
        for shard in shards:
            del self._leaving[shard]
        self._hand_out(shards)

    def _hand_out(self, shards: Iterable[ShardKey]) -> None:
        new: dict[str, set[ShardKey]] = {}
        for shard in shards:
            name = self._wanted.get(shard)
            if name is not None and shard not in self._leaving:
                new.setdefault(name, set()).add(shard)
        for name, theirs in new.items():
            member = self._members.get(name)
            if member is not None and not theirs <= member.shards:
                self._change(member, member.shards | theirs)

    def _change(self, member: Member[Address], shards: set[ShardKey]) -> None:
        member.shards = shards
        member.revision += 1
        self._changed(member.name)


class MissingFetchers:
    """Measures for how long there has been no fetcher.

    Args:
        patience: Seconds after which the query fails.
        now: Monotonic time, seconds.
        problem: Returns what keeps fetchers from starting, for the message; empty if unknown.
    """

    def __init__(self, patience: float, now: float, problem: Callable[[], str]) -> None:
        self._patience = patience
        self._since = now
        self._problem = problem

    def begin(self, now: float) -> None:
        """Start measuring, because the last fetcher is gone."""
        self._since = now

    def look(self, now: float) -> FetcherError | None:
        """The error that ends the query, if there has been no fetcher for `patience`; else None."""
        seconds = now - self._since
        if seconds >= self._patience:
            return FetcherError(
                f"no fetcher has come up for {seconds:.0f} s. {self._problem()}".strip()
                + " Fetchers run as Spark tasks: Spark's UI shows their job, 'kinesis-efo fetchers', and why it waits or fails"
            )
        return None


class FetcherSession:
    """The run's side of the exchange with one fetcher.

    Args:
        budget: The fetcher's `bufferBytes`.

    Attributes:
        budget: The fetcher's `bufferBytes`.
        changed: Notified when there is something new for the fetcher.
        number: The number of the last reply to the fetcher; 0 before the first.
        reading: Whether a task is reading from the fetcher, as its last request says.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.changed = Signal()
        self.number = 0
        self.reading = False
        self._told: dict[ShardKey, Position] = {}
        self._reports = 0

    def heard(self, number: int) -> None:
        """Note the number of the last reply that the fetcher has received. If it missed a later reply, all positions are sent again."""
        if number != self.number:
            self._told.clear()

    def untold(self, shards: Iterable[ShardKey], done: Mapping[ShardKey, Position]) -> dict[ShardKey, Position]:
        """The positions that have not been in a reply to the fetcher yet.

        Args:
            shards: The fetcher's shards.
            done: The position up to which each shard is processed.
        """
        return {
            key: position
            for key in shards
            if (position := done.get(key)) is not None and self._told.get(key) != position
        }

    def tell(self, done: dict[ShardKey, Position]) -> dict[ShardKey, Position]:
        """Note that the next reply has these positions; returns them."""
        self._told |= done
        self.number += 1
        return done

    def follows(self, number: int) -> bool:
        """Accept a report if its number is the next one, or 1 because the fetcher starts over; returns whether it was accepted."""
        if number not in (1, self._reports + 1):
            return False
        self._reports = number
        return True
