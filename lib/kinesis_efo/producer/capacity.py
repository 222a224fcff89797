"""The bound on what is outstanding, shared fairly between shards. Thread-safe; waiting is up to the callers.

Half of the capacity is set aside evenly for the shards, the other half is for whichever needs it. So a hot shard fills what
is common and its own share, and there is always capacity for the others.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kinesis_efo.producer.record import Record


@dataclass(slots=True)
class Usage:
    """Records and bytes of one shard that are outstanding."""

    records: int = 0
    bytes: int = 0


def usage_of(records: Iterable[Record]) -> dict[str, Usage]:
    """What records take, by the shard they are booked on."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for record in records:
        sizes[record.shard].append(record.size)
    return {shard: Usage(len(its_sizes), sum(its_sizes)) for shard, its_sizes in sizes.items()}


@dataclass(eq=False, slots=True)
class Waiter:
    """A put that waits. `admitted` is set before `wake` is called; it stays False where the capacity was closed."""

    shard: str
    size: int
    wake: Callable[[Waiter], None]
    since: float
    admitted: bool = field(default=False)


class Capacity:
    """Bounds records and bytes outstanding.

    Args:
        max_records: Records, in total.
        max_bytes: Bytes, in total. A record above half of it could wait for ever: the caller sees to that.
        shards: How many shards share the capacity.
        monotonic: Seconds; passed in for tests.
    """

    def __init__(
        self, max_records: int, max_bytes: int, shards: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._max = Usage(max_records, max_bytes)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._usages: dict[str, Usage] = {}
        self._total = Usage()
        self._beyond = Usage()
        self._waiters: list[Waiter] = []
        self._closed = False
        self.waits = 0
        self._seconds_waited = 0.0
        self._divide(shards)

    @property
    def records(self) -> int:
        """Records outstanding."""
        return self._total.records

    @property
    def bytes(self) -> int:
        """Bytes outstanding."""
        return self._total.bytes

    @property
    def waiting(self) -> bool:
        """Whether a put waits for capacity."""
        return bool(self._waiters)

    @property
    def seconds_waited(self) -> float:
        """Seconds that puts have waited, those included that still do."""
        with self._lock:
            now = self._monotonic()
            return self._seconds_waited + sum(now - waiter.since for waiter in self._waiters)

    def try_acquire(self, shard: str, size: int) -> bool:
        """Take capacity for a record if there is any now."""
        with self._lock:
            use, total = self._usages.get(shard), self._total
            # The way of most records: within the share, nobody waits, and nothing but sums changes.
            if (
                use is not None
                and use.records < self._share.records
                and use.bytes + size <= self._share.bytes
                and total.records < self._max.records
                and total.bytes + size <= self._max.bytes
                and not self._waiters
                and not self._closed
            ):
                use.records += 1
                use.bytes += size
                total.records += 1
                total.bytes += size
                return True
            if self._closed or not self._may_acquire(shard, 1, size, self._waiters):
                return False
            self._change(shard, 1, size)
            return True

    def try_acquire_all(self, usages: Mapping[str, Usage]) -> bool:
        """Take capacity for many records if there is capacity for all of them now, and nobody waits; else for none."""
        with self._lock:
            if self._closed or self._waiters:
                return False
            acquired: list[tuple[str, Usage]] = []
            for shard, use in usages.items():
                if not self._may_acquire(shard, use.records, use.bytes, ()):
                    for other, its_use in acquired:
                        self._change(other, -its_use.records, -its_use.bytes)
                    return False
                self._change(shard, use.records, use.bytes)
                acquired.append((shard, use))
            return True

    def acquire(self, shard: str, size: int, wake: Callable[[Waiter], None]) -> Waiter:
        """Take capacity for a record, or queue for it.

        Args:
            shard: Whose share is used first.
            size: Bytes.
            wake: Called once, with the waiter, from any thread, when there is capacity or the capacity was closed.

        Returns:
            Whom to ask (`admitted`) once `wake` was called, which may be at once.
        """
        with self._lock:
            waiter = Waiter(shard, size, wake, self._monotonic())
            self.waits += 1
            if not self._closed:
                self._waiters.append(waiter)
            woken = self._admit()
        for other in woken:
            other.wake(other)
        if self._closed:
            wake(waiter)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Give up waiting; capacity that was granted meanwhile is given back."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._seconds_waited += self._monotonic() - waiter.since
            elif waiter.admitted:
                self._change(waiter.shard, -1, -waiter.size)
            woken = self._admit()
        for other in woken:
            other.wake(other)

    def release(self, usages: Mapping[str, Usage]) -> None:
        """Give back what records took, by the shard they were booked on, and admit others."""
        with self._lock:
            for shard, use in usages.items():
                self._change(shard, -use.records, -use.bytes)
            woken = self._admit()
        for waiter in woken:
            waiter.wake(waiter)

    def divide(self, shards: int) -> None:
        """Share the capacity between another number of shards."""
        with self._lock:
            self._divide(shards)
            woken = self._admit()
        for waiter in woken:
            waiter.wake(waiter)

    def close(self) -> None:
        """Admit nobody any more, and wake all who wait."""
        with self._lock:
            self._closed = True
            woken, self._waiters = self._waiters, []
            now = self._monotonic()
            self._seconds_waited += sum(now - waiter.since for waiter in woken)
        for waiter in woken:
            waiter.wake(waiter)

    # -- with the lock held

    def _divide(self, shards: int) -> None:
        parts = 2 * max(1, shards)
        self._share = Usage(self._max.records // parts, self._max.bytes // parts)
        count = max(1, shards)
        self._common = Usage(
            self._max.records - count * self._share.records, self._max.bytes - count * self._share.bytes
        )
        self._beyond = Usage()
        for use in self._usages.values():
            self._beyond.records += max(0, use.records - self._share.records)
            self._beyond.bytes += max(0, use.bytes - self._share.bytes)

    def _may_acquire(self, shard: str, records: int, size: int, before: Collection[Waiter]) -> bool:
        """Whether there is capacity for records of a shard, which `before` are ahead of.

        Who waits for common capacity keeps it from those behind: a large record is not starved by small ones. A shard's own
        share is always its own; within a shard, order is kept.
        """
        total, most = self._total, self._max
        if total.records + records > most.records or total.bytes + size > most.bytes:
            return False
        use, share = self._usages.get(shard, _NOTHING), self._share
        beyond_records = max(0, use.records + records - max(use.records, share.records))
        beyond_bytes = max(0, use.bytes + size - max(use.bytes, share.bytes))
        if before:
            return not beyond_records and not beyond_bytes and all(waiter.shard != shard for waiter in before)
        return (not beyond_records or self._beyond.records + beyond_records <= self._common.records) and (
            not beyond_bytes or self._beyond.bytes + beyond_bytes <= self._common.bytes
        )

    def _change(self, shard: str, records: int, size: int) -> None:
        use = self._usages.get(shard)
        if use is None:
            use = self._usages[shard] = Usage()
        share, beyond = self._share, self._beyond
        before_records, before_bytes = use.records - share.records, use.bytes - share.bytes
        use.records += records
        use.bytes += size
        self._total.records += records
        self._total.bytes += size
        after_records, after_bytes = before_records + records, before_bytes + size
        if before_records > 0 or after_records > 0:
            beyond.records += max(0, after_records) - max(0, before_records)
        if before_bytes > 0 or after_bytes > 0:
            beyond.bytes += max(0, after_bytes) - max(0, before_bytes)
        if not use.records:
            del self._usages[shard]

    def _admit(self) -> list[Waiter]:
        if not self._waiters or self._closed:
            return []
        admitted: list[Waiter] = []
        left: list[Waiter] = []
        now = self._monotonic()
        for place, waiter in enumerate(self._waiters):
            if self._total.records >= self._max.records:
                left += self._waiters[place:]
                break
            if not self._may_acquire(waiter.shard, 1, waiter.size, left):
                left.append(waiter)
                continue
            self._change(waiter.shard, 1, waiter.size)
            waiter.admitted = True
            self._seconds_waited += now - waiter.since
            admitted.append(waiter)
        self._waiters = left
        return admitted


_NOTHING = Usage()
