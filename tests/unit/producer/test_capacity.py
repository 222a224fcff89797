"""The capacity: never exceeded, fair between shards, no waiter forgotten."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.producer.capacity import Capacity, Usage, Waiter

SHARDS = ["a", "b", "c"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Driver:
    """Acquires and releases capacity, and keeps track of records and waiters by itself."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.inside: dict[str, list[int]] = defaultdict(list)
        self.woken: list[Waiter] = []
        self.waiting: dict[str, list[Waiter]] = defaultdict(list)

    def wake(self, waiter: Waiter) -> None:
        assert waiter.admitted
        assert self.waiting[waiter.shard].pop(0) is waiter, "order within a shard"
        self.inside[waiter.shard].append(waiter.size)
        self.woken.append(waiter)

    def acquire(self, shard: str, size: int) -> bool:
        if self.capacity.try_acquire(shard, size):
            assert not self.waiting[shard], "passed a waiter of the same shard"
            self.inside[shard].append(size)
            return True
        waiters = self.waiting[shard]
        placeholder = Waiter(shard, size, self.wake, 0.0)
        waiters.append(placeholder)

        def wake(waiter: Waiter) -> None:
            waiters[waiters.index(placeholder)] = waiter
            self.wake(waiter)

        real = self.capacity.acquire(shard, size, wake)
        if not real.admitted:
            waiters[waiters.index(placeholder)] = real
            real.wake = self.wake
        return False

    def release(self, shard: str, place: int = 0) -> None:
        size = self.inside[shard].pop(place)
        self.capacity.release({shard: Usage(1, size)})


@given(st.data(), st.integers(1, 12), st.integers(20, 200))
def test_the_bounds_hold_and_every_waiter_is_admitted_in_the_end(
    data: st.DataObject, most: int, most_bytes: int
) -> None:
    driver = Driver(Capacity(most, most_bytes, len(SHARDS)))
    for _ in range(data.draw(st.integers(0, 60))):
        shard = data.draw(st.sampled_from(SHARDS))
        if data.draw(st.booleans()):
            driver.acquire(shard, data.draw(st.integers(0, most_bytes // 2)))
        elif driver.inside[shard]:
            driver.release(shard, data.draw(st.integers(0, len(driver.inside[shard]) - 1)))
        elif data.draw(st.booleans()):
            driver.capacity.divide(data.draw(st.integers(1, 5)))
        assert driver.capacity.records == sum(map(len, driver.inside.values())) <= most
        assert driver.capacity.bytes == sum(map(sum, driver.inside.values())) <= most_bytes
    for _ in range(1_000):
        shard = next((shard for shard in SHARDS if driver.inside[shard]), None)
        if shard is None:
            break
        driver.release(shard)
    assert not any(driver.waiting.values())
    assert not driver.capacity.waiting
    assert (driver.capacity.records, driver.capacity.bytes) == (0, 0)


@given(
    st.lists(st.tuples(st.sampled_from(SHARDS), st.integers(0, 30)), max_size=30),
    st.lists(st.tuples(st.sampled_from(SHARDS), st.integers(0, 30)), max_size=12),
)
def test_many_are_admitted_together_exactly_when_they_would_be_one_by_one(
    inside: list[tuple[str, int]], many: list[tuple[str, int]]
) -> None:
    together, apart = Capacity(20, 200, len(SHARDS)), Capacity(20, 200, len(SHARDS))
    for shard, size in inside:
        assert together.try_acquire(shard, size) == apart.try_acquire(shard, size)
    before = together.records, together.bytes
    usages: dict[str, Usage] = {}
    for shard, size in many:
        use = usages.setdefault(shard, Usage())
        use.records += 1
        use.bytes += size
    fits = all(apart.try_acquire(shard, size) for shard, size in many)
    assert together.try_acquire_all(usages) == fits
    assert (together.records, together.bytes) == ((apart.records, apart.bytes) if fits else before)


def test_a_hot_shard_leaves_capacity_for_the_others() -> None:
    driver = Driver(Capacity(100, 10_000, 2))
    while driver.acquire("hot", 1):
        pass
    assert len(driver.inside["hot"]) == 75
    for _ in range(25):
        assert driver.acquire("cold", 1)
    assert not driver.acquire("cold", 1)


def test_a_large_record_is_not_starved_by_small_ones() -> None:
    driver = Driver(Capacity(1_000, 100, 2))
    for _ in range(6):
        assert driver.acquire("a", 10)
    assert not driver.acquire("a", 50)
    for _ in range(20):
        if not driver.acquire("b", 10):
            break
    assert sum(driver.inside["b"]) <= 30, "b used the common capacity that a waits for"
    for _ in range(5):
        driver.release("a")
    assert [waiter.size for waiter in driver.woken][:1] == [50]


def test_a_cancelled_waiter_lets_the_next_in() -> None:
    capacity, woken = Capacity(1, 100, 1), []
    assert capacity.try_acquire("a", 1)
    first = capacity.acquire("a", 1, woken.append)
    second = capacity.acquire("a", 1, woken.append)
    capacity.cancel(first)
    capacity.release({"a": Usage(1, 1)})
    assert woken == [second]
    assert capacity.records == 1
    capacity.cancel(second)
    assert capacity.records == 0


def test_closing_wakes_all_waiters_and_admits_none() -> None:
    capacity, woken = Capacity(1, 100, 1), []
    assert capacity.try_acquire("a", 1)
    waiters = [capacity.acquire("a", 1, woken.append) for _ in range(3)]
    capacity.close()
    assert woken == waiters
    assert not any(waiter.admitted for waiter in waiters)
    assert not capacity.try_acquire("b", 1)
    late = capacity.acquire("b", 1, woken.append)
    assert woken[-1] is late
    assert not late.admitted


def test_a_waiter_is_woken_once_even_if_the_capacity_closes_meanwhile() -> None:
    capacity = Capacity(2, 100, 1)
    woken: list[bool] = []

    def wake(waiter: Waiter) -> None:
        woken.append(waiter.admitted)
        capacity.close()

    capacity.acquire("a", 1, wake)
    assert woken == [True]


def test_waits_and_their_seconds_are_counted_even_while_they_last() -> None:
    clock = Clock()
    capacity = Capacity(1, 100, 1, clock)
    assert capacity.try_acquire("a", 1)
    assert (capacity.waits, capacity.seconds_waited) == (0, 0)
    capacity.acquire("a", 1, lambda _: None)
    clock.now = 2.0
    assert (capacity.waits, capacity.seconds_waited) == (1, 2.0)
    capacity.release({"a": Usage(1, 1)})
    clock.now = 5.0
    assert (capacity.waits, capacity.seconds_waited) == (1, 2.0)


@pytest.mark.parametrize("threads", [4])
def test_threads_share_a_capacity_without_losing_count(threads: int) -> None:
    capacity = Capacity(8, 1_000, 2)

    def work(shard: str) -> None:
        for _ in range(400):
            if not capacity.try_acquire(shard, 3):
                woken = threading.Event()
                capacity.acquire(shard, 3, lambda _, woken=woken: woken.set())  # type: ignore[misc]
                assert woken.wait(20)
            assert capacity.records <= 8
            capacity.release({shard: Usage(1, 3)})

    workers = [threading.Thread(target=work, args=("ab"[number % 2],)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()
    assert (capacity.records, capacity.bytes, capacity.waiting) == (0, 0, False)
