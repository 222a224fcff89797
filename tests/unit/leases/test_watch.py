"""Who is alive, in virtual time: owners that renew, that died, and that come and go while somebody watches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.watch import WatchResult, watch
from kinesis_efo.positions import Position
from tests.support.lease_store import MemoryLeaseStore
from tests.support.virtual_time import LoopClock, run

TIMEOUT = 10.0


def _watch(change: Callable[[MemoryLeaseStore, float], None], *rows: Lease, at_most: float = TIMEOUT) -> WatchResult:
    """Watch a table that `change` writes to every tenth of a second."""

    async def main() -> WatchResult:
        table = MemoryLeaseStore()
        table.items = {row.key: row.to_item() for row in rows}

        async def worker() -> None:
            for step in range(1_000):
                await asyncio.sleep(0.1)
                change(table, step / 10)

        working = asyncio.create_task(worker())
        try:
            return await watch(table, LoopClock(), at_most)
        finally:
            working.cancel()

    return run(main())


def _renew(key: str, every: float, **changes: object) -> Callable[[MemoryLeaseStore, float], None]:
    def change(table: MemoryLeaseStore, now: float) -> None:
        if round(now * 10) % round(every * 10) == 0:
            table.items[key] = replace(table.lease(key).renewed(), **changes).to_item()  # type: ignore[arg-type]

    return change


ALIVE, DEAD, FREE = Lease("a", owner="alive"), Lease("d", owner="dead"), Lease("f")


def test_all_alive_is_known_after_a_renewal() -> None:
    seen = _watch(_renew("a", TIMEOUT / 3), ALIVE, FREE)
    assert seen.live_owners == {"alive": ["a"]}
    assert seen.seconds <= TIMEOUT / 2


def test_a_dead_owner_is_known_after_the_timeout_and_not_before() -> None:
    seen = _watch(_renew("a", TIMEOUT / 3), ALIVE, DEAD)
    assert seen.live_owners == {"alive": ["a"]}
    assert seen.seconds >= TIMEOUT


@pytest.mark.parametrize("rows", [(), (FREE,)])
def test_free_leases_need_no_watching(rows: tuple[Lease, ...]) -> None:
    seen = _watch(lambda *_: None, *rows)
    assert (seen.live, seen.seconds) == (frozenset(), 0.0)


def test_one_look_decides_nothing() -> None:
    assert _watch(_renew("a", 0.1), ALIVE, at_most=0.0).live == frozenset()


def test_an_owner_that_released_meanwhile_is_not_alive() -> None:
    def change(table: MemoryLeaseStore, now: float) -> None:
        if now == 1.5:
            table.items["a"] = table.lease("a").renewed().to_item()
        if now == 4.5:
            table.items["a"] = table.lease("a").released().to_item()

    assert _watch(change, ALIVE, DEAD).live == frozenset()


def test_a_lease_that_is_taken_meanwhile_is_alive() -> None:
    def change(table: MemoryLeaseStore, now: float) -> None:
        if now == 2.5:
            table.items["f"] = table.lease("f").taken("new", "", 1).to_item()

    assert _watch(change, FREE, DEAD).live_owners == {"new": ["f"]}


def test_a_run_that_begins_meanwhile_is_alive() -> None:
    def begin(table: MemoryLeaseStore, now: float) -> None:
        if now == TIMEOUT - 1:
            table.items["n"] = Lease("n", owner="new").to_item()

    assert _watch(begin, DEAD).live_owners == {"new": ["n"]}


def test_positions_that_move_are_seen() -> None:
    seen = _watch(_renew("a", 2.0, checkpoint=Position.after(9)), ALIVE, DEAD)
    assert seen.moved == {"a"}


def test_only_what_is_of_interest_is_waited_for() -> None:
    async def main() -> float:
        table = MemoryLeaseStore()
        table.items = {DEAD.key: DEAD.to_item()}
        return (await watch(table, LoopClock(), TIMEOUT, lambda lease: lease.key != "d")).seconds

    assert run(main()) == 0.0


def test_it_is_told_once_that_one_look_is_not_enough() -> None:
    async def main(table: MemoryLeaseStore, at_most: float) -> int:
        told: list[float] = []
        clock = LoopClock()
        await watch(table, clock, at_most, waiting=lambda: told.append(clock.monotonic()))
        assert all(at == 1000 for at in told), "before it waits"
        return len(told)

    table = MemoryLeaseStore()
    table.items = {DEAD.key: DEAD.to_item(), FREE.key: FREE.to_item()}
    assert run(main(table, TIMEOUT)) == 1
    assert run(main(table, 0)) == 0
    del table.items[DEAD.key]
    assert run(main(table, TIMEOUT)) == 0
