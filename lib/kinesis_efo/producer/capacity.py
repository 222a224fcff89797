"""Bounds the outstanding records and bytes, and shares the capacity fairly between shards. Thread-safe; no method blocks.

Half of the capacity is divided evenly between the shards, the other half is common. So a hot shard can fill the common half and its
own share, but not the shares of other shards.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kinesis_efo.producer.record import Record


@dataclass(slots=True)
class Usage:
    """The outstanding records and bytes of one shard."""

    records: int = 0
    bytes: int = 0


def usage_of(records: Iterable[Record]) -> dict[str, Usage]:
    """Return the capacity that records need, by shard."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for record in records:
        sizes[record.shard].append(record.size)
    return {shard: Usage(len(its_sizes), sum(its_sizes)) for shard, its_sizes in sizes.items()}


@dataclass(eq=False, slots=True)
class Waiter:
    """A put that waits for capacity. `admitted` is set before `wake` is called; it stays False if the capacity was closed."""

    shard: str
    size: int
    wake: Callable[[Waiter], None]
    since: float
    admitted: bool = False


class Capacity:
    """Bounds the outstanding records and bytes of all shards together; `shards` is their number.

    The caller must refuse records larger than half of `max_bytes`, because these could wait for ever.
    """

    def __init__(
        self, max_records: int, max_bytes: int, shards: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._max = Usage(max_records, max_bytes)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._usages: dict[str, Usage] = {}
        self._total = Usage()
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
        """Seconds that puts have waited so far, including those that still wait."""
        with self._lock:
            now = self._monotonic()
            return self._seconds_waited + sum(now - waiter.since for waiter in self._waiters)

    def try_acquire(self, shard: str, size: int) -> bool:
        """Take capacity for a record; returns whether there was enough."""
        with self._lock:
            use, total = self._usages.get(shard), self._total
            # The fast path of most records: within the shard's share, and there are no waiters.
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
        """Take capacity for all of these records, or for none if there is not enough or there are waiters."""
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

    def acquire_parts(self, records: Sequence[Record]) -> Iterator[tuple[Sequence[Record], bool]]:
        """Take capacity for records, as many at a time as possible.

        Yields records in order, and whether capacity was taken for them. If not, it is a single record, which has to wait.
        """
        if (admitted := self.try_acquire_all(usage_of(records))) or len(records) == 1:
            yield records, admitted
        else:
            half = len(records) // 2
            yield from self.acquire_parts(records[:half])
            yield from self.acquire_parts(records[half:])

    def acquire(self, shard: str, size: int, wake: Callable[[Waiter], None]) -> Waiter:
        """Take capacity for a record, or queue for it. The waiter's `admitted` is valid once `wake` was called.

        `wake` is called once, with the waiter, after it was admitted or the capacity was closed: in any thread, even before this returns.
        """
        with self._changed():
            waiter = Waiter(shard, size, wake, self._monotonic())
            self.waits += 1
            if not (closed := self._closed):
                self._waiters.append(waiter)
        if closed:
            wake(waiter)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Stop waiting, and return capacity that was granted meanwhile."""
        with self._changed():
            if waiter in self._waiters:
                self._waiters.remove(waiter)
                self._seconds_waited += self._monotonic() - waiter.since
            elif waiter.admitted:
                self._change(waiter.shard, -1, -waiter.size)

    def release(self, usages: Mapping[str, Usage]) -> None:
        """Give back the capacity that records used, by shard, and admit waiters."""
        with self._changed():
            for shard, use in usages.items():
                self._change(shard, -use.records, -use.bytes)

    def divide(self, shards: int) -> None:
        """Divide the capacity between another number of shards."""
        with self._changed():
            self._divide(shards)

    def close(self) -> None:
        """Stop admitting, and wake all waiters."""
        with self._lock:
            self._closed = True
            woken, self._waiters = self._waiters, []
            now = self._monotonic()
            self._seconds_waited += sum(now - waiter.since for waiter in woken)
        for waiter in woken:
            waiter.wake(waiter)

    @contextmanager
    def _changed(self) -> Iterator[None]:
        """Hold the lock for a change. Then admit waiters, and wake them without the lock."""
        with self._lock:
            yield
            woken = self._admit()
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
        """Whether there is capacity for records of a shard that come after the waiters `before`.

        Common capacity is kept for the first waiter, so that small records do not starve a large one. A record that fits into its own
        shard's share may overtake waiters of other shards, but no record may overtake waiters of its own shard.
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
        over_records, over_bytes = use.records - self._share.records, use.bytes - self._share.bytes
        self._beyond.records += max(0, over_records + records) - max(0, over_records)
        self._beyond.bytes += max(0, over_bytes + size) - max(0, over_bytes)
        for each in (use, self._total):
            each.records += records
            each.bytes += size
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
