"""Decides which fetcher of a run reads which shard. Does no I/O; the time is passed in.

A shard moves to another fetcher only after its previous fetcher is gone, or has confirmed that it has closed the subscription.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf

from msgspec.structs import replace

from kinesis_efo.cluster.shares import share_out
from kinesis_efo.decisions.losses import NO_FACTS
from kinesis_efo.fetcher.budget import Signal
from kinesis_efo.fetcher.work import Order, Work, WorkRequest
from kinesis_efo.positions import ShardKey


class Member:
    """A fetcher of the run, with its shards and the instructions (`Order`) that were sent to it."""

    def __init__(self) -> None:
        self.request: WorkRequest  # The fetcher's last request
        self.requested_at: float  # When the last request was received, monotonic seconds
        self.shards: frozenset[ShardKey] = frozenset()  # The shards that the fetcher may read
        self.revision = 1  # Increases whenever `shards` changes
        self.changed = Signal()  # Notified when a reply must be sent to the fetcher
        self.number = 0  # The number of the last reply; 0 before the first
        self._sent: dict[ShardKey, Order] = {}
        # When the run replied to the last report, monotonic seconds. The fetcher creates its next report only after this reply
        self.replied_at = -inf
        self._reports = 0

    def __str__(self) -> str:
        return f"{self.request.place} on {self.request.host}"

    def record_request(self, request: WorkRequest, now: float) -> None:
        """Record a request. If the fetcher has missed a reply or is starting over, the next reply contains all instructions again."""
        self.request, self.requested_at = request, now
        if request.done != self.number or not request.revision:
            self._sent.clear()

    def unsent(self, orders: Mapping[ShardKey, Order]) -> dict[ShardKey, Order]:
        """Return the instructions in `orders` for this fetcher's shards that were not sent in a reply yet."""
        return {
            key: order for key in self.shards if (order := orders.get(key)) is not None and self._sent.get(key) != order
        }

    def send(self, orders: Mapping[ShardKey, Order]) -> list[tuple[ShardKey, Order]]:
        """Return the unsent instructions for the next reply, and count them as sent."""
        news, sent = self.unsent(orders), self._sent
        self._sent = {key: order for key, order in {**sent, **news}.items() if key in self.shards}
        self.number += 1
        return [
            (
                key,
                replace(order, start=None, known=NO_FACTS)
                if key in sent and sent[key].version == order.version
                else order,
            )
            for key, order in news.items()
        ]

    def accept_report(self, number: int) -> bool:
        """Accept a report if its number is the next one, or 1 from a fetcher that starts over. Return whether it was accepted."""
        if number not in (1, self._reports + 1):
            return False
        self._reports = number
        if number == 1:
            self.replied_at = -inf  # this report may have been created before the last reply
        return True


class Members:
    """The fetchers of a run. A fetcher whose last request is `timeout` seconds old counts as dead; by then, it has stopped reading."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._members: dict[str, Member] = {}
        self._wanted: dict[ShardKey, str] = {}
        self._leaving: dict[ShardKey, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, name: str) -> Member | None:
        """Return a fetcher by its name; None if it is unknown."""
        return self._members.get(name)

    def owner(self, shard: ShardKey) -> Member | None:
        """Return the fetcher that may read a shard; None if the shard is unassigned."""
        name = self._wanted.get(shard)
        member = self._members.get(name) if name is not None else None
        return member if member is not None and shard in member.shards else None

    def register_request(self, request: WorkRequest, now: float) -> Member | Work:
        """Handle a fetcher's request for work at `now` (monotonic seconds). Returns the fetcher or, if the fetcher may not work, the reply
        to the request."""
        name = request.name
        member = self._members.get(name)
        if member is None:
            if request.revision:
                return Work("unknown")
            if any(other.request.place == request.place for other in self._members.values()):
                return Work("standby")
            member = self._members[name] = Member()
        member.record_request(request, now)
        self._free(shard for shard, (who, until) in self._leaving.items() if who == name and until <= request.revision)
        return member

    def remove(self, name: str) -> Member | None:
        """Remove and return a fetcher; None if it is unknown. Call `distribute` afterwards to reassign its shards."""
        member = self._members.pop(name, None)
        if member is not None:
            self._free(shard for shard, (who, _) in self._leaving.items() if who == name)
        return member

    def silent(self, now: float, seconds: float | None = None) -> list[Member]:
        """Return the fetchers that have not sent a request for `seconds` (by default: those that count as dead)."""
        limit = self._timeout if seconds is None else seconds
        return [member for member in self._members.values() if now - member.requested_at >= limit]

    def distribute(self, weights: Mapping[ShardKey, float]) -> None:
        """Distribute the shards by their cost in `weights`, moving as few shards as possible."""
        self._wanted = dict(share_out(weights, self._members.keys(), self._wanted))
        for name, member in self._members.items():
            if away := {shard for shard in member.shards if self._wanted.get(shard) != name}:
                self._change(member, member.shards - away)
                self._leaving |= dict.fromkeys(away, (name, member.revision))
        self._hand_out(self._wanted)

    @property
    def closing(self) -> frozenset[ShardKey]:
        """Shards that were withdrawn from a fetcher, which has not yet confirmed that it closed them."""
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

    def _change(self, member: Member, shards: frozenset[ShardKey]) -> None:
        member.shards = shards
        member.revision += 1
        member.changed.notify()
