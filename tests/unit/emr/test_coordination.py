"""Who is seen to hold leases, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from kinesis_efo.leases.row import Lease
from kinesis_efo.leases.store import Conflict
from kinesis_efo_tools.emr.coordination import living_owners, until_free
from tests.support.lease_store import MemoryLeaseStore
from tests.support.virtual_time import LoopClock

TIMEOUT = 10.0


async def _owned(store: MemoryLeaseStore, shard: str, owner: str) -> Lease:
    outcome = await store.create(Lease(shard).taken(owner, "grpc://host:1", 1))
    assert not isinstance(outcome, Conflict)
    return outcome


async def _renews(store: MemoryLeaseStore, lease: Lease) -> None:
    while True:
        await asyncio.sleep(TIMEOUT / 3)
        outcome = await store.update(lease, lease.renewed())
        assert not isinstance(outcome, Conflict)
        lease = outcome


async def _look(store: MemoryLeaseStore, *, every: bool = False) -> tuple[list[str], float]:
    clock = LoopClock()
    began = clock.monotonic()
    owners = await living_owners(store, clock, TIMEOUT, every=every)
    return sorted(owners), clock.monotonic() - began


async def test_dead_owner_is_not_alive() -> None:
    store = MemoryLeaseStore()
    assert await _look(store) == ([], 0)
    await store.create(Lease("shardId-000000000009"))
    assert await _look(store) == ([], 0), "free leases are not watched"
    await _owned(store, "shardId-000000000000", "dead")
    owners, seconds = await _look(store)
    assert (owners, seconds) == ([], pytest.approx(TIMEOUT))
    renewing = asyncio.create_task(_renews(store, await _owned(store, "shardId-000000000001", "alive")))
    owners, seconds = await _look(store)
    assert owners == ["alive"]
    assert seconds < TIMEOUT / 2, "as soon as one is seen to be alive"
    renewing.cancel()


async def test_all_live_owners_are_found_on_request() -> None:
    store, renewing = MemoryLeaseStore(), []
    for number, delay in enumerate((0.0, 3.0)):
        await asyncio.sleep(delay)
        lease = await _owned(store, f"shardId-{number:012}", f"worker {number}")
        renewing.append(asyncio.create_task(_renews(store, lease)))
    assert (await _look(store, every=True))[0] == ["worker 0", "worker 1"]
    for task in renewing:
        task.cancel()


async def test_new_owner_of_a_lease_is_alive() -> None:
    store = MemoryLeaseStore()
    lease = await _owned(store, "shardId-000000000000", "dead")

    async def take() -> None:
        await asyncio.sleep(4)
        await store.update(lease, lease.taken("successor", "grpc://host:2", 2))

    taking = asyncio.create_task(take())
    assert (await _look(store))[0] == ["successor"]
    await taking


async def test_leases_become_free_when_their_owner_ends() -> None:
    store, clock = MemoryLeaseStore(), LoopClock()
    renewing = asyncio.create_task(_renews(store, await _owned(store, "shardId-000000000000", "worker")))
    began = clock.monotonic()
    assert list(await until_free(store, clock, TIMEOUT)) == ["worker"]
    assert 3 * TIMEOUT <= clock.monotonic() - began <= 4 * TIMEOUT
    asyncio.get_running_loop().call_later(TIMEOUT, renewing.cancel)
    assert list(await until_free(store, clock, TIMEOUT)) == []
