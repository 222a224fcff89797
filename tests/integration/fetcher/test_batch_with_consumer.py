"""Batch reads with readMode=efo: the same rows as with GetRecords, and never through the consumer of a live query."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from kinesis_efo.aws import SyncClients
from kinesis_efo.batch.planning import plan, tip_at
from kinesis_efo.batch.reading import Reading
from kinesis_efo.batch.stretches import Stretch
from kinesis_efo.errors import AlreadyRunningError, ConsumerTakenOverError, LeaseTableError
from kinesis_efo.manifest import Manifest, resolve_manifest
from kinesis_efo.options import BatchOptions
from tests.support.fetching import reading
from tests.support.world import World

MakeWorld = Callable[..., World]


class Batch:
    """A batch read of a world."""

    def __init__(self, world: World, **options: str) -> None:
        given = {"manifest": str(world.manifest), "endpointUrl": world.aws.endpoint_url, "leaseTimeout": "1s"}
        self.options = BatchOptions.parse({**given, **options})
        self.manifest: Manifest = resolve_manifest(self.options.source, SyncClients(self.options.source.aws))
        self.loaded = time.time()

    def plan(self) -> list[Stretch]:
        return asyncio.run(plan(self.manifest, self.options, tip_at(self.loaded)))

    def reading(self) -> Reading:
        return Reading(self.plan(), self.manifest, self.options.source)

    def rows(self) -> list[tuple[str, str, bytes]]:
        found = []
        for batch in self.reading().batches():
            columns = (batch[name].to_pylist() for name in ("shardId", "sequenceNumber", "data"))
            found += list(zip(*columns, strict=True))
        return sorted(found)


def numbered(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"key{number}", b"%06d" % number) for number in range(first, first + count)]


def test_the_same_rows_as_with_get_records_and_at_every_attempt(world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put(numbered(500))
    w.kinesis.split_shard(
        StreamName=w.streams["orders"], ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    w.wait_active()
    w.put(numbered(500, 500))
    batch = Batch(w, readMode="efo")
    w_later = batch.rows()
    w.put(numbered(100, 1000))
    assert batch.rows() == w_later == Batch(w, endingPosition=_until(batch)).rows()
    assert sorted(data for _, _, data in w_later) == [data for _, data in numbered(1000)]
    assert w.aws.kinesis.calls("SubscribeToShard") >= 8


def _until(batch: Batch) -> str:
    return str(tip_at(batch.loaded))


def test_not_through_the_consumer_of_a_live_query(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(10))
    with reading(w) as query:
        query.until(10)
        with pytest.raises(AlreadyRunningError) as caught:
            Batch(w, readMode="efo").plan()
        assert "application 'lake', stream orders, is read by" in str(caught.value)
        assert f"give its manifest; this one is {w.manifest}" in str(caught.value)
        assert Batch(w).plan(), "with GetRecords, it disturbs nobody"
    assert len(Batch(w, readMode="efo").rows()) == 10


def test_whoever_takes_the_consumer_keeps_it(world: MakeWorld) -> None:
    w = world()
    for _ in range(20):
        w.put((f"key{number}", bytes(5_000)) for number in range(500))
    batches = Batch(w, readMode="efo").reading().batches()
    assert next(batches).num_rows
    shard = w.shards()[0]["ShardId"]
    taken = w.kinesis.subscribe_to_shard(
        ConsumerARN=w.consumers["orders"], ShardId=shard, StartingPosition={"Type": "LATEST"}
    )
    with pytest.raises(ConsumerTakenOverError, match="is read by someone else"):
        list(batches)
    taken["EventStream"].close()


def test_without_its_table_nothing_tells_whether_a_query_reads(world: MakeWorld) -> None:
    w = world()
    w.dynamodb.delete_table(TableName=w.lease_table)
    with pytest.raises(LeaseTableError, match=w.lease_table):
        Batch(w, readMode="efo").plan()
