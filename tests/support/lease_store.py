"""A lease table in memory with DynamoDB's rules for conditions, and a faulty network in front of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from kinesis_efo.errors import TableUnavailableError
from kinesis_efo.leases.row import OBSOLETE, Item, Lease
from kinesis_efo.leases.store import Conflict, LeaseStore, Outcome, Scan

T = TypeVar("T")


class MemoryLeaseStore(LeaseStore):
    """Stores rows as DynamoDB does: attributes in their typed form, changed one by one.

    Attributes:
        items: The rows, by lease key. Tests may change them directly.
        writes: All writes, in order: (key, row before, row after).
    """

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self.writes: list[tuple[str, Item | None, Item | None]] = []

    @property
    def label(self) -> str:
        return "lease table memory"

    def lease(self, key: str) -> Lease:
        lease = Lease.from_item(self.items[key])
        assert lease is not None
        return lease

    async def check(self) -> str:
        return "arn:aws:dynamodb:eu-west-1:123456789012:table/memory"

    async def scan(self) -> Scan:
        leases: dict[str, Lease] = {}
        unreadable: dict[str, str] = {}
        for key, item in self.items.items():
            try:
                if (lease := Lease.from_item(item)) is not None:
                    leases[key] = lease
            except ValueError as error:
                unreadable[key] = f"{error} in {self.label}"
        return Scan(leases, unreadable)

    async def create(self, lease: Lease) -> Outcome:
        if lease.key in self.items:
            return Conflict(self.lease(lease.key))
        self._store(lease.key, lease.to_item())
        return lease

    async def update(self, before: Lease, after: Lease) -> Outcome:
        item = self.items.get(before.key)
        if not self._matches(item, before):
            return Conflict(Lease.from_item(item) if item else None)
        old, new = before.to_item(), after.to_item()
        changed = {name: value for name, value in new.items() if old.get(name) != value}
        gone = set(old) - set(new)
        if not after.is_run:
            gone |= set(OBSOLETE)
        self._store(
            before.key, {name: value for name, value in {**(item or {}), **changed}.items() if name not in gone}
        )
        return self.lease(before.key)

    async def delete(self, seen: Lease) -> Outcome:
        item = self.items.get(seen.key)
        if not self._matches(item, seen):
            return Conflict(Lease.from_item(item) if item else None)
        self._store(seen.key, None)
        return seen

    def _store(self, key: str, item: Item | None) -> None:
        self.writes.append((key, self.items.get(key), item))
        if item is None:
            del self.items[key]
        else:
            self.items[key] = item

    @staticmethod
    def _matches(item: Item | None, before: Lease) -> bool:
        if item is None or item["leaseCounter"]["N"] != str(before.counter):
            return False
        return item.get("leaseOwner", {}).get("S") == before.owner


@dataclass
class Network(LeaseStore):
    """A path to a store that can be slow, cut, throttled, frozen (as a stopped process is), or lose answers.

    Attributes:
        inner: The store behind it.
        random: Determines latency and losses.
        latency: Seconds each way, on average.
        patience: Seconds after which a request without an answer fails.
        cut: Whether requests are lost.
        throttled: Whether requests are refused.
        refused: Operations that are refused.
        slow: Seconds before the creation of a row is sent, by lease key.
        error: Raised for every request, if set.
        lose_requests: Probability that a request is lost.
        lose_answers: Probability that the answer to a request is lost.
        lossy: Operations whose answers may be lost.
        late: Probability that a lost request arrives up to 30 s later, after it has failed for the caller.
        running: Cleared while the process is stopped.
        requests: Number of requests sent, by operation.
        in_flight: Number of requests under way.
        most_in_flight: The largest number of requests under way.
        stragglers: Requests that will arrive late.
    """

    inner: MemoryLeaseStore
    random: Random
    latency: float = 0.005
    patience: float = 2.0
    cut: bool = False
    throttled: bool = False
    refused: frozenset[str] = frozenset()
    slow: dict[str, float] = field(default_factory=dict)
    error: Exception | None = None
    lose_requests: float = 0.0
    lose_answers: float = 0.0
    lossy: frozenset[str] = frozenset({"check", "scan", "create", "update", "delete"})
    late: float = 0.0
    running: asyncio.Event = field(default_factory=asyncio.Event)
    requests: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    most_in_flight: int = 0
    stragglers: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.running.set()

    @property
    def label(self) -> str:
        return self.inner.label

    async def check(self) -> str:
        return await self._send("check", self.inner.check)

    async def scan(self) -> Scan:
        return await self._send("scan", self.inner.scan)

    async def create(self, lease: Lease) -> Outcome:
        if lease.key in self.slow:
            await asyncio.sleep(self.slow[lease.key])
        return await self._send("create", lambda: self.inner.create(lease))

    async def update(self, before: Lease, after: Lease) -> Outcome:
        return await self._send("update", lambda: self.inner.update(before, after))

    async def delete(self, seen: Lease) -> Outcome:
        return await self._send("delete", lambda: self.inner.delete(seen))

    async def _send(self, operation: str, request: Callable[[], Awaitable[T]]) -> T:
        self.requests[operation] = self.requests.get(operation, 0) + 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._deliver(operation, request)
        finally:
            self.in_flight -= 1

    async def _deliver(self, operation: str, request: Callable[[], Awaitable[T]]) -> T:
        await self.running.wait()
        await asyncio.sleep(self.latency * 2 * self.random.random())
        if self.error is not None:
            raise self.error
        if self.throttled or operation in self.refused:
            raise TableUnavailableError(f"{self.label}: throttled")
        if self.cut or self.random.random() < self.lose_requests:
            if self.random.random() < self.late:
                self._arrive_late(request)
            await asyncio.sleep(self.patience)
            raise TableUnavailableError(f"{self.label}: no answer")
        answer = await request()
        if operation in self.lossy and self.random.random() < self.lose_answers:
            await asyncio.sleep(self.patience)
            raise TableUnavailableError(f"{self.label}: no answer")
        await asyncio.sleep(self.latency * 2 * self.random.random())
        await self.running.wait()
        return answer

    def _arrive_late(self, request: Callable[[], Awaitable[T]]) -> None:
        async def arrive() -> None:
            await asyncio.sleep(30 * self.random.random())
            await request()

        task = asyncio.ensure_future(arrive())
        self.stragglers.add(task)
        task.add_done_callback(self.stragglers.discard)
