"""Who is alive, in virtual time: owners that renew, that died, and that come and go while somebody watches."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Position
from kinesis_efo_tools.operate.watch import WatchResult, watch
from tests.support.lease_store import MemoryLeaseStore
from tests.support.virtual_time import LoopClock, run

TIMEOUT = 10.0


def _watch(change: Callable[[MemoryLeaseStore, float], None], *rows: Lease, **options: Any) -> WatchResult:
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
            return await watch(table, LoopClock(), **{"at_most": TIMEOUT, **options})
        finally:
            working.cancel()

    return run(main())


def _renew(key: str, every: float, **changes: object) -> Callable[[MemoryLeaseStore, float], None]:
    def change(table: MemoryLeaseStore, now: float) -> None:
        if key in table.items and round(now * 10) % round(every * 10) == 0:
            table.items[key] = replace(table.lease(key).renewed(), **changes).to_item()  # type: ignore[arg-type]

    return change


ALIVE, DEAD, FREE = Lease("a", owner="alive"), Lease("d", owner="dead"), Lease("f")


def test_live_owners_are_found_by_a_renewal() -> None:
    seen = _watch(_renew("a", TIMEOUT / 3), ALIVE, FREE)
    assert seen.live_owners == {"alive": ["a"]}
    assert seen.seconds <= TIMEOUT / 2


def test_dead_owner_is_found_after_the_timeout() -> None:
    seen = _watch(_renew("a", TIMEOUT / 3), ALIVE, DEAD)
    assert seen.live_owners == {"alive": ["a"]}
    assert seen.seconds >= TIMEOUT


@pytest.mark.parametrize(
    ("rows", "at_most"), [((), TIMEOUT), ((FREE,), TIMEOUT), ((DEAD,), TIMEOUT), ((ALIVE, FREE), 0.0)]
)
def test_one_scan_is_enough_without_owners_of_interest(rows: tuple[Lease, ...], at_most: float) -> None:
    seen = _watch(_renew("a", 0.1), *rows, at_most=at_most, of_interest=lambda lease: lease.key != "d")
    assert (seen.live, seen.seconds) == (frozenset(), 0.0)


def test_owner_that_released_meanwhile_is_not_alive() -> None:
    def change(table: MemoryLeaseStore, now: float) -> None:
        if now == 1.5:
            table.items["a"] = table.lease("a").renewed().to_item()
        if now == 4.5:
            table.items["a"] = table.lease("a").released().to_item()

    assert _watch(change, ALIVE, DEAD).live == frozenset()


def test_lease_acquired_meanwhile_is_alive() -> None:
    def change(table: MemoryLeaseStore, now: float) -> None:
        if now == 2.5:
            table.items["f"] = table.lease("f").taken("new", "", 1).to_item()

    assert _watch(change, FREE, DEAD).live_owners == {"new": ["f"]}


def test_run_that_begins_meanwhile_is_alive() -> None:
    def begin(table: MemoryLeaseStore, now: float) -> None:
        if now == TIMEOUT - 1:
            table.items["n"] = Lease("n", owner="new").to_item()

    assert _watch(begin, DEAD).live_owners == {"new": ["n"]}


def test_moved_positions_are_found() -> None:
    assert _watch(_renew("a", 2.0, checkpoint=Position.after(9)), ALIVE, DEAD).moved == {"a"}


def test_waiting_is_announced_once() -> None:
    calls: list[float] = []
    for rows, at_most in (((DEAD, FREE), TIMEOUT), ((DEAD, FREE), 0), ((FREE,), TIMEOUT)):
        _watch(lambda *_: None, *rows, at_most=at_most, waiting=lambda: calls.append(asyncio.get_running_loop().time()))
    assert calls == [1000], "once, before it waits"
