"""Tests that every lease store must pass. They run on the model in memory and on DynamoDB's API."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Item, Lease, LeaseInfo
from kinesis_efo.leases.store import Conflict, LeaseStore
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position
from kinesis_efo_tools.operate.lease_edits import moved
from tests.support.contracts import Contract

KEY = "shardId-000000000000"
BIG = int("9" * 129)

Scenario = Callable[[LeaseStore], Awaitable[None]]


def written(outcome: object) -> Lease:
    assert isinstance(outcome, Lease), outcome
    return outcome


def lost(outcome: object) -> Lease | None:
    assert isinstance(outcome, Conflict), outcome
    return outcome.current


async def owned(store: LeaseStore, owner: str = "a") -> Lease:
    return written(await store.create(Lease.new(KEY, LeaseInfo()).taken(owner, "grpc://here", 1)))


async def stored(store: LeaseStore, key: str = KEY) -> Lease | None:
    return (await store.scan()).leases.get(key)


class LeaseStoreContract(Contract):
    """Each store is new and empty."""

    @abstractmethod
    async def put_item(self, store: LeaseStore, item: Item) -> None:
        """Write a row without a condition, as another program does."""

    @abstractmethod
    async def get_item(self, store: LeaseStore, key: str) -> Item:
        """Read a row as it is stored."""

    async def test_a_new_row_comes_back_as_written(self, store: LeaseStore) -> None:
        lease = Lease.new(
            KEY, LeaseInfo(Position.at_timestamp(1_700_000_000_123), frozenset({"shardId-p"}), "0", str(2**128 - 1))
        ).taken("a", "grpc://here", 1)
        assert written(await store.create(lease)) == lease
        assert await stored(store) == lease

    async def test_row_has_its_stream_as_the_writer_knows_it(self, store: LeaseStore) -> None:
        known, unsure = StreamIdentity("arn:orders", 1_700_000_000), StreamIdentity("arn:orders")
        lease = replace(Lease.new(KEY, LeaseInfo()), epoch=1, stream=known)
        assert written(await store.create(lease)) == lease
        item = await self.get_item(store, KEY)
        assert (item["streamArn"], item["streamCreated"]) == ({"S": "arn:orders"}, {"N": "1700000000"})
        after = written(await store.update(lease, replace(lease.renewed(), epoch=2, stream=unsure)))
        assert (after.stream, await stored(store)) == (unsure, after)
        assert "streamCreated" not in await self.get_item(store, KEY)
        assert written(await store.update(after, moved(after, Position.after(7)))).stream is None
        assert "streamArn" not in await self.get_item(store, KEY)

    async def test_a_row_is_created_once(self, store: LeaseStore) -> None:
        first = await owned(store, "a")
        assert lost(await store.create(Lease.new(KEY, LeaseInfo()).taken("b", "grpc://there", 2))) == first
        assert await stored(store) == first

    # Shows 60, 73.
    async def test_a_stale_counter_cannot_renew(self, store: LeaseStore) -> None:
        first = await owned(store)
        second = written(await store.update(first, first.renewed()))
        third = written(await store.update(second, second.renewed()))
        assert (second.counter, third.counter) == (first.counter + 1, first.counter + 2)
        assert lost(await store.update(first, first.renewed())) == third

    # Shows 61.
    async def test_renewed_lease_cannot_be_acquired_with_a_stale_counter(self, store: LeaseStore) -> None:
        seen = await owned(store)
        renewed = written(await store.update(seen, seen.renewed()))
        assert lost(await store.update(seen, seen.taken("b", "grpc://there", 2))) == renewed
        assert await stored(store) == renewed

    # Shows 63.
    async def test_acquiring_changes_the_owner_and_excludes_the_old(self, store: LeaseStore) -> None:
        seen = await owned(store)
        taken = written(await store.update(seen, seen.taken("b", "grpc://there", 2)))
        assert (taken.owner, taken.endpoint, taken.epoch) == ("b", "grpc://there", 2)
        assert taken.counter == seen.counter + 1
        for change in (Lease.renewed, Lease.released, lambda lease: lease.checkpointed(Position.after(7))):
            assert lost(await store.update(seen, change(seen))) == taken
        assert lost(await store.delete(seen)) == taken
        assert await stored(store) == taken

    async def test_of_many_takers_one_wins(self, store: LeaseStore) -> None:
        seen = await owned(store)
        names = [f"worker {i}" for i in range(8)]
        outcomes = await asyncio.gather(*(store.update(seen, seen.taken(name, "", 2)) for name in names))
        winners = [each for each in outcomes if isinstance(each, Lease)]
        assert len(winners) == 1
        assert await stored(store) == winners[0]

    async def test_repeated_write_after_a_lost_answer_shows_our_row(self, store: LeaseStore) -> None:
        seen = await owned(store)
        assert lost(await store.create(seen)) == seen
        taken = written(await store.update(seen, seen.taken("b", "grpc://there", 2)))
        assert lost(await store.update(seen, seen.taken("b", "grpc://there", 2))) == taken
        assert written(await store.update(taken, taken.taken("b", "grpc://there", 3))).epoch == 3

    # Shows 73.
    async def test_checkpoint_has_the_form_of_kcl_and_no_owner(self, store: LeaseStore) -> None:
        seen = await owned(store)
        lease = written(await store.update(seen, seen.taken("b", "", 2)))
        after = written(await store.update(lease, lease.checkpointed(Position.after(BIG), record=LastRecord(BIG))))
        assert (after.checkpoint, after.continuation, after.owner_switches) == (Position.after(BIG), BIG, 0)
        assert (after.counter, after.owner) == (lease.counter + 1, None)
        item = await self.get_item(store, KEY)
        assert item["checkpoint"] == {"S": "9" * 129}
        assert item["checkpointSubSequenceNumber"] == {"N": "0"}
        assert item["ownerSwitchesSinceCheckpoint"] == {"N": "0"}

    async def test_the_time_goes_when_the_checkpoint_leaves_it(self, store: LeaseStore) -> None:
        info = LeaseInfo(Position.at_timestamp(1_700_000_000_123))
        lease = written(await store.create(Lease.new(KEY, info).taken("a", "", 1)))
        item = await self.get_item(store, KEY)
        assert (item["checkpoint"], item["checkpointTimestamp"]) == ({"S": "AT_TIMESTAMP"}, {"N": "1700000000123"})
        await store.update(lease, lease.checkpointed(Position.after(1), record=LastRecord(1)))
        assert "checkpointTimestamp" not in await self.get_item(store, KEY)

    # Shows 75.
    async def test_a_finished_shard_names_its_children_and_is_free(self, store: LeaseStore) -> None:
        lease = await owned(store)
        end = written(await store.update(lease, lease.checkpointed(SHARD_END, {"c1", "c2"})))
        assert (end.checkpoint, end.children, end.owner) == (SHARD_END, {"c1", "c2"}, None)
        item = await self.get_item(store, KEY)
        assert sorted(item["childShardIds"]["SS"]) == ["c1", "c2"]
        assert not {"leaseOwner", "endpoint"} & item.keys()

    # Shows 74.
    async def test_write_after_our_lost_answer_reports_it(self, store: LeaseStore) -> None:
        before = await owned(store)
        renewed = written(await store.update(before, before.renewed()))
        for change in (Lease.renewed, lambda row: row.checkpointed(Position.after(5)), Lease.released):
            assert lost(await store.update(before, change(before))) == renewed
        assert await stored(store) == renewed
        released = written(await store.update(renewed, renewed.released()))
        assert lost(await store.update(renewed, renewed.released())) == released

    async def test_row_of_a_run_has_only_an_epoch(self, store: LeaseStore) -> None:
        row = Lease(run_key("orders"), checkpoint=None).taken("a", "grpc://here", 7)
        held = written(await store.create(row))
        assert held == row
        renewed = written(await store.update(held, held.renewed()))
        assert (renewed.epoch, renewed.owner, renewed.is_run) == (7, "a", True)
        item = await self.get_item(store, "#run:orders")
        assert sorted(item) == ["endpoint", "epoch", "leaseCounter", "leaseKey", "leaseOwner"]
        telling = written(await store.update(renewed, renewed.renewed(Lag(3, 700, 1500, "shardId-2"))))
        item = await self.get_item(store, "#run:orders")
        assert item["lag"] == {
            "M": {
                "shards": {"N": "3"},
                "bufferedBytes": {"N": "700"},
                "millisBehind": {"N": "1500"},
                "shardId": {"S": "shardId-2"},
            }
        }
        assert (await stored(store, "#run:orders")) == telling
        free = written(await store.update(telling, telling.released()))
        assert "lag" not in await self.get_item(store, "#run:orders")
        assert written(await store.update(free, free.taken("b", "", 8))).epoch == 8

    # Shows 65.
    async def test_update_does_not_restore_a_deleted_row(self, store: LeaseStore) -> None:
        lease = await owned(store)
        assert written(await store.delete(lease)) == lease
        assert lost(await store.delete(lease)) is None
        assert lost(await store.update(lease, lease.renewed())) is None
        assert lost(await store.update(lease, lease.taken("b", "", 2))) is None
        assert await stored(store) is None

    # Shows 65.
    async def test_a_row_that_was_written_since_is_not_deleted(self, store: LeaseStore) -> None:
        seen = await owned(store)
        renewed = written(await store.update(seen, seen.renewed()))
        assert lost(await store.delete(seen)) == renewed
        free = written(await store.update(renewed, renewed.released()))
        taken = written(await store.update(free, free.taken("b", "", 2)))
        assert lost(await store.delete(replace(free, counter=taken.counter))) == taken
        assert await stored(store) == taken

    # Shows 65, 66.
    async def test_unknown_attributes_stay_and_pending_ones_of_kcl_go(self, store: LeaseStore) -> None:
        kcl: Item = {
            "leaseKey": {"S": KEY},
            "leaseOwner": {"S": "kcl-worker"},
            "leaseCounter": {"N": "41"},
            "checkpoint": {"S": "LATEST"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "throughputKBps": {"N": "12.5"},
            "checkpointOwner": {"S": "other"},
            "pendingCheckpoint": {"S": "49"},
            "pendingCheckpointSubSequenceNumber": {"N": "0"},
            "pendingCheckpointState": {"B": b"x"},
        }
        await self.put_item(store, kcl)
        seen = await stored(store)
        assert seen is not None
        assert seen.checkpoint is None
        assert not seen.ours
        written(await store.update(seen, seen.taken("b", "grpc://there", 2)))
        item = await self.get_item(store, KEY)
        assert item["throughputKBps"] == {"N": "12.5"}
        assert item["checkpoint"] == {"S": "LATEST"}
        assert not [name for name in item if name.startswith(("pending", "checkpointOwner"))]

    # Shows 69.
    async def test_other_rows_are_skipped_and_broken_ones_named(self, store: LeaseStore) -> None:
        lease = await owned(store)
        await self.put_item(store, {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}})
        await self.put_item(store, {"leaseKey": {"S": "bad"}, "leaseCounter": {"S": "x"}})
        scan = await store.scan()
        assert dict(scan.leases) == {KEY: lease}
        assert list(scan.unreadable) == ["bad"]
        assert "lease row 'bad' has attribute 'leaseCounter' = {'S': 'x'}, expected type N" in scan.unreadable["bad"]
        assert store.label in scan.unreadable["bad"]

    async def test_new_row_starts_at_the_horizon_by_default(self, store: LeaseStore) -> None:
        assert (await owned(store)).checkpoint == TRIM_HORIZON
