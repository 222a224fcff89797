"""A fetcher over real HTTP and a real service: ranges, repetition, leases, resharding, what goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator

from kinesis_efo.errors import (
    AlreadyRunningError,
    ConfigurationError,
    ConsumerNotFoundError,
    FetcherError,
    FetcherRefusedError,
    FetcherUnreachableError,
    LeaseLostError,
    LeaseTableError,
    StreamNotFoundError,
)
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange
from kinesis_efo.tasks.client import FetcherClient
from tests.support.fetching import Row, reading
from tests.support.messages import raises
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]
EVERYTHING = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, SHARD_END)


def numbered(count: int, size: int = 0, keys: int = 7, first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"k{n % keys}", f"{n:08d}".encode().ljust(size)) for n in range(first, first + count)]


def in_order(rows: Iterable[Row]) -> None:
    """Per partition key, in the order in which they were put."""
    last: dict[tuple[str, str | None], tuple[int, bytes]] = {}
    for row in rows:
        key = (row.stream, row.key)
        assert last.get(key, (0, b"")) < (row.sequence, row.data[:8])
        last[key] = (row.sequence, row.data[:8])


def test_poll_get_commit(world: MakeWorld) -> None:
    w = world({"orders": 2, "clicks": 1})
    put = numbered(1000)
    w.put(put)
    w.put(put, "clicks")
    with reading(w) as r:
        rows = r.until(2000)
        assert sorted(row.data for row in rows) == sorted(2 * [data for _, data in put])
        in_order(rows)
        w.put(numbered(10, first=1000))
        assert len(r.until(2010)) == 2010
        before, after = r.batches[-1]
        again = [row for wanted in before.ranges_to(after) for row in r.read(wanted)]
        assert again == r.rows[-len(again) :]
    wait_until(lambda: all("leaseOwner" not in row for row in w.leases().values()), 60)


def test_every_batch_can_be_read_again_after_a_commit(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(300, size=1000))
    with reading(w) as r:
        r.until(300, max_records=50)
        r.commit()
        calls = w.aws.kinesis.calls("SubscribeToShard") + w.aws.kinesis.calls("GetRecords")
        for before, after in r.batches:
            for wanted in before.ranges_to(after):
                rows = r.read(wanted)
                assert rows == [row for row in r.rows if _within(row, wanted)]
        again = w.aws.kinesis.calls("SubscribeToShard") + w.aws.kinesis.calls("GetRecords")
        assert again > calls, "they were gone from the buffer"
        w.put(numbered(1, first=300))
        r.until(301)


def test_two_readers_of_one_range_get_the_same(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(2000, size=2000))
    with reading(w, bufferBytes="1m") as r:
        key = ShardKey("orders", "shardId-000000000000")
        last = int(w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=b"z")["SequenceNumber"])
        whole = ShardRange(key, TRIM_HORIZON, Position.after(last))
        with ThreadPoolExecutor(2) as pool:

            def attempt() -> list[Row]:
                with FetcherClient(r.runtime.address, r.runtime.secret) as client:
                    return r.read(whole, client)

            one, other = [future.result(60) for future in [pool.submit(attempt), pool.submit(attempt)]]
        assert one == other
        assert [row.data[:8] for row in one] == [data[:8] for _, data in numbered(2000)] + [b"z"]


def test_a_budget_far_smaller_than_the_ranges(world: MakeWorld) -> None:
    """The ranges come from a log that was written with another budget: 12 MB through 1 MB."""
    w = world({"orders": 3})
    put = numbered(6000, size=2000)
    w.put(put)
    with reading(w) as r:
        r.until(6000)
        end = r.offset
    with reading(w, at=Offset(dict.fromkeys(end, TRIM_HORIZON)), bufferBytes="1m") as r:
        ranges = r.offset.ranges_to(end)
        with ThreadPoolExecutor(3) as pool:

            def attempt(wanted: ShardRange) -> list[Row]:
                with FetcherClient(r.runtime.address, r.runtime.secret) as client:
                    return r.read(wanted, client)

            rows = [row for rows in pool.map(attempt, ranges) for row in rows]
        assert sorted(row.data for row in rows) == sorted(data for _, data in put)
        r.offset = end
        w.put(numbered(1, first=6000))
        assert len(r.until(1)) == 1


def test_departed_reader_does_not_delay_the_next(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(3000, size=2000))
    with reading(w, bufferBytes="1m") as r:
        last = int(w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=b"z")["SequenceNumber"])
        whole = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, Position.after(last))
        r.calls.repeats(whole)
        with FetcherClient(r.runtime.address, r.runtime.secret) as impatient:
            answers = impatient.get([whole])
            next(next(answers).payloads)
            answers.close()
        assert len(r.read(whole)) == 3001


def test_distant_readers_do_not_evict_each_others_events(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(3000, size=2000))
    with reading(w, bufferBytes="1m") as r:
        last = int(w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=b"z")["SequenceNumber"])
        whole = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, Position.after(last))
        r.calls.repeats(whole)
        with FetcherClient(r.runtime.address, r.runtime.secret) as ahead:
            answers = ahead.get([whole])
            payloads = next(answers).payloads
            first = next(payloads)
            with ThreadPoolExecutor(1) as pool:
                behind = pool.submit(r.read, whole)
                rest = sum(1 for _ in payloads)
                assert len(behind.result(60)) == 3001
        assert first
        assert rest >= 6


def test_order_across_split_merge_and_restart(world: MakeWorld) -> None:
    w = world()
    name = w.streams["orders"]
    put: list[tuple[str, bytes]] = []

    def more(count: int) -> None:
        records = numbered(count, keys=20, first=len(put))
        put.extend(records)
        w.put(records)

    more(200)
    with reading(w) as r:
        r.until(50, max_records=50)
        w.kinesis.split_shard(StreamName=name, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127))
        w.wait_active()
        more(200)
        r.until(120, max_records=30)
        offset, rows = r.offset, r.rows
    assert "shardId-000000000000" in {key.shard for key in offset}, "the parent is not read to its end yet"
    w.kinesis.merge_shards(
        StreamName=name, ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    w.wait_active()
    more(200)
    with reading(w, at=offset) as r:
        r.rows = rows
        r.until(600, max_records=40)
        in_order(r.rows)
        assert [row.data for row in sorted(r.rows, key=lambda row: row.data)] == [data for _, data in put]
        for before, after in r.batches:
            for key in after:
                if key not in before:
                    parents = {
                        s.get(p)
                        for s in w.shards()
                        if s["ShardId"] == key.shard
                        for p in ("ParentShardId", "AdjacentParentShardId")
                    }
                    assert all(after.get(ShardKey("orders", p), SHARD_END).is_end for p in parents if p)
                    assert after[key] == TRIM_HORIZON, "children come in a later batch than their parents' ends"
        wait_until(lambda: (r.batch(), list(r.offset))[1] == [ShardKey("orders", "shardId-000000000003")], 20)
    leases = w.leases()
    assert leases["orders:shardId-000000000001"]["checkpoint"]["S"] == "SHARD_END"
    assert leases["orders:shardId-000000000001"]["childShardIds"]["SS"] == ["shardId-000000000003"]


# Shows 1.
def test_second_run_is_refused_and_the_first_continues(world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put(numbered(10))
    # Long enough that nothing is lost where this machine is slow.
    with reading(w, leaseTimeout="4s") as first:
        first.until(10)
        opened = w.aws.kinesis.calls("SubscribeToShard")
        with reading(w, leaseTimeout="4s") as second:
            with raises(
                AlreadyRunningError,
                "application lake, stream orders, is already read by this Spark program itself, by another of its sources "
                "(process ...), last seen ... s ago renewing lease #run:orders; sources of one program share a run if they "
                "can find each other: the driver's log says why these cannot, and sessions of Spark Connect never do. "
                "Write to several tables from one query, with foreachBatch, or give this source an application of its own",
            ) as caught:
                second.until(1, seconds=30)
            assert "from one query, with foreachBatch, or give this source an application of its own" in str(
                caught.value
            )
        assert w.aws.kinesis.calls("SubscribeToShard") == opened, "the second one must not subscribe"
        w.put(numbered(10, first=10))
        assert len(first.until(20)) == 20


def test_second_run_asking_for_tips_disturbs_no_run(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(10))
    with reading(w) as first:
        first.until(10)
        with reading(w) as second, pytest.raises(AlreadyRunningError):
            wait_until(second.tips, 30)
        w.put(numbered(10, first=10))
        assert len(first.until(20)) == 20


def test_lease_is_acquired_on_release_or_expiry(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(10))
    with reading(w) as first:
        first.until(10)
        offset = first.offset
    w.dynamodb.update_item(
        TableName=w.lease_table,
        Key={"leaseKey": {"S": "#run:orders"}},
        UpdateExpression="SET leaseOwner = :crashed",
        ExpressionAttributeValues={":crashed": {"S": "host:1:crashed"}},
    )
    w.put(numbered(10, first=10))
    with reading(w, at=offset) as second:
        assert len(second.until(10)) == 10


def test_a_lost_lease_ends_the_query_and_its_subscription(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(10))
    with reading(w) as r:
        r.until(10)
        w.dynamodb.update_item(
            TableName=w.lease_table,
            Key={"leaseKey": {"S": "#run:orders"}},
            UpdateExpression="SET leaseOwner = :thief ADD leaseCounter :one",
            ExpressionAttributeValues={":thief": {"S": "thief"}, ":one": {"N": "1"}},
        )
        with raises(
            LeaseLostError,
            "thief took the lease on stream orders while this query was reading: the application has a second query, or "
            "this one was stopped for longer than leaseTimeout. Nothing was lost; run one query per application",
        ):
            wait_until(lambda: r.batch() and False, 20)
        wait_until(lambda: not w.aws.kinesis.subscriptions or _open(w) == 0, 60)


def test_missing_lease_table_is_named_with_its_stack(world: MakeWorld) -> None:
    w = world()
    w.dynamodb.delete_table(TableName=w.lease_table)
    with (
        pytest.raises(LeaseTableError, match=f"(?s){w.lease_table}.*application 'lake'.*manifest {w.manifest}"),
        reading(w),
    ):
        pass


def test_a_lease_table_with_another_key_is_refused(world: MakeWorld) -> None:
    w = world()
    w.dynamodb.delete_table(TableName=w.lease_table)
    w.dynamodb.create_table(
        TableName=w.lease_table,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with (
        raises(
            LeaseTableError,
            "lease table kinesis-efo-...-lake in us-east-1 has the key schema HASH id (S), a lease table has HASH leaseKey "
            "(S): it is not a lease table; it is declared by application 'lake' in environment 'test' (manifest ...), and "
            "a query never creates it: deploy that first",
        ),
        reading(w),
    ):
        pass


def test_a_wrong_secret_is_refused(world: MakeWorld) -> None:
    with (
        reading(world()) as r,
        FetcherClient(r.runtime.address, "guessed") as other,
        pytest.raises(FetcherRefusedError),
    ):
        next(other.get([EVERYTHING]))


def test_a_fetcher_that_is_gone_is_named(world: MakeWorld) -> None:
    with reading(world()) as r:
        address, secret = r.runtime.address, r.runtime.secret
    unreachable = pytest.raises(FetcherUnreachableError, match=f"no fetcher answers at {address} ")
    with FetcherClient(address, secret) as client, unreachable:
        next(client.get([EVERYTHING]))


def test_a_consumer_deleted_while_reading_fails_the_next_poll(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(10))
    with reading(w) as r:
        r.until(10)
        arn = w.consumers["orders"]
        w.kinesis.deregister_stream_consumer(ConsumerARN=arn)
        with pytest.raises(ConsumerNotFoundError) as caught:
            r.poll(timeout=20.0)
    message = str(caught.value)
    assert f"consumer {arn} does not exist (any more); its ARN came from {w.manifest}" in message
    assert "declare it again where it was declared, give the new ARN there, and restart the query" in message
    assert "cdktf" not in message, "`kinesis-efo local` may have written the manifest"


def test_a_stream_deleted_while_reading(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(10))
    with reading(w) as r:
        r.until(10)
        w.kinesis.delete_stream(StreamName=w.streams["orders"], EnforceConsumerDeletion=True)
        with pytest.raises((StreamNotFoundError, ConsumerNotFoundError), match=r"does not exist \(any more\)"):
            r.poll(timeout=20.0)


def test_a_stream_that_was_never_deployed(world: MakeWorld) -> None:
    w = world()
    w.manifest.write_text(w.manifest.read_text().replace(w.streams["orders"], "nowhere"))
    with (
        pytest.raises(
            StreamNotFoundError, match=r"nowhere .*does not exist.*Was it deployed to this account and region\?"
        ),
        reading(w),
    ):
        pass


def test_tips_are_where_the_streams_end_now(world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put(numbered(100))
    with reading(w) as r:
        tips = wait_until(r.tips, 30)
        w.put(numbered(100, first=100))
        before = [row for wanted in r.offset.ranges_to(tips) for row in r.read(wanted)]
        assert sorted(row.data for row in before) == [data for _, data in numbered(100)]
        r.offset = tips
        assert sorted(row.data for row in r.until(100)) == [data for _, data in numbered(100, first=100)]


# Shows 20.
def test_stopping_is_quick_also_while_somebody_waits(world: MakeWorld) -> None:
    w = world()
    outcome: list[BaseException] = []
    with reading(w) as r:
        runtime = r.runtime
        r.calls.repeats(EVERYTHING)

        def wait_long() -> None:
            with FetcherClient(runtime.address, runtime.secret) as client:
                try:
                    list(next(client.get([EVERYTHING])).payloads)
                except FetcherError as error:
                    outcome.append(error)

        waiting = threading.Thread(target=wait_long)
        waiting.start()
        wait_until(lambda: _open(w) == 1, 20)
        runtime.stop()
        waiting.join(5)
        assert not waiting.is_alive()
        assert outcome and isinstance(outcome[0], FetcherUnreachableError)
        assert all("leaseOwner" not in row for row in w.leases().values())
        wait_until(lambda: _open(w) == 0, 60)


def test_starting_where_a_kcl_application_stopped(world: MakeWorld) -> None:
    w = world()
    numbers = [
        int(w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=data)["SequenceNumber"])
        for _, data in numbered(10)
    ]
    row = {
        "leaseKey": {"S": "shardId-000000000000"},
        "leaseCounter": {"N": "7"},
        "checkpoint": {"S": str(numbers[3])},
        "checkpointSubSequenceNumber": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
    }
    w.dynamodb.put_item(TableName=w.lease_table, Item=row)
    with (
        pytest.raises(
            LeaseTableError, match=r"row shardId-0{12} of lease table .* is a KCL application's: .*import-kcl"
        ),
        reading(w, startingPosition="LEASES"),
    ):
        pass
    imported = {**row, "leaseKey": {"S": "orders:shardId-000000000000"}}
    w.dynamodb.put_item(TableName=w.lease_table, Item=imported)
    with reading(w, startingPosition="LEASES") as r:
        assert [row.sequence for row in r.until(6)] == numbers[4:]


def test_children_that_the_kcl_holds_follow_their_parent(world: MakeWorld) -> None:
    w = world()
    w.put(numbered(20))
    (root,) = (shard["ShardId"] for shard in w.shards())
    w.kinesis.split_shard(StreamName=w.streams["orders"], ShardToSplit=root, NewStartingHashKey=str(2**127))
    w.wait_active()
    w.put(numbered(20, first=20))
    children = [shard["ShardId"] for shard in w.shards() if shard["ShardId"] != root]
    for shard, parents in ((root, []), *((child, [root]) for child in children)):
        row = {
            "leaseKey": {"S": f"orders:{shard}"},
            "leaseCounter": {"N": "7"},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            **({"parentShardId": {"SS": parents}} if parents else {}),
        }
        w.dynamodb.put_item(TableName=w.lease_table, Item=row)
    with reading(w, startingPosition="LEASES") as r:
        assert dict(r.offset) == {ShardKey("orders", root): TRIM_HORIZON}
        rows = r.until(40)
        in_order(rows)
        assert {row.shard for row in rows[:20]} == {root}


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_row_after_an_aggregate_has_its_last_index(world: MakeWorld, mode: str) -> None:
    w = world()
    aggregator = RecordAggregator()
    for _, data in numbered(10):
        aggregator.add_user_record("k", data)
    aggregate = bytes(aggregator.clear_and_get().get_contents()[2])
    w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=b"before")
    last = w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=aggregate)["SequenceNumber"]
    with reading(w, readMode=mode) as r:
        r.until(11)
        r.commit()
    row = w.leases()["orders:shardId-000000000000"]
    assert row["checkpoint"] == {"S": last}
    assert row["checkpointSubSequenceNumber"] == {"N": "9"}
    with reading(w, startingPosition="LEASES", readMode=mode) as r:
        w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=b"behind")
        assert [row.data for row in r.until(1)] == [b"behind"]


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_starting_where_a_kcl_application_stopped_inside_an_aggregate(world: MakeWorld, mode: str) -> None:
    w = world()
    aggregator = RecordAggregator()
    for _, data in numbered(10):
        aggregator.add_user_record("k", data)
    aggregate = bytes(aggregator.clear_and_get().get_contents()[2])
    put = [
        int(w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=data)["SequenceNumber"])
        for data in (b"before", aggregate, aggregate, b"behind")
    ]
    row = {
        "leaseKey": {"S": "orders:shardId-000000000000"},
        "leaseCounter": {"N": "7"},
        "checkpoint": {"S": str(put[1])},
        "checkpointSubSequenceNumber": {"N": "6"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
    }
    w.dynamodb.put_item(TableName=w.lease_table, Item=row)
    expected = [data for _, data in [*numbered(10)[7:], *numbered(10), ("", b"behind")]]
    with reading(w, startingPosition="LEASES", readMode=mode) as r:
        begin = r.offset
        assert [row.data for row in r.until(14)] == expected
        r.commit()
    # Spark has the beginning in its log: the same range gives the same rows, whatever the lease says by now.
    assert begin.to_json().endswith(f'"INSIDE:{put[1]}:6"}}}},"version":1}}')
    with reading(w, at=begin, readMode=mode) as r:
        assert [row.data for row in r.until(14)] == expected
    with reading(w, startingPosition="LEASES", readMode=mode) as r:
        w.put([("k", b"later")])
        assert [row.data for row in r.until(1)] == [b"later"], "a checkpoint of ours is behind the whole record"


def test_starting_from_leases_that_are_not_there(world: MakeWorld) -> None:
    w = world()
    with (
        raises(
            LeaseTableError,
            "kinesis-efo option 'startingPosition' is LEASES, but lease table kinesis-efo-...-lake in us-east-1 has no "
            "readable rows for stream 'orders'. Copy them from the KCL application's table with `kinesis-efo leases "
            "import-kcl`, or start at TRIM_HORIZON or LATEST",
        ),
        reading(w, startingPosition="LEASES"),
    ):
        pass


def test_offsets_only_grow_and_ranges_touch(world: MakeWorld) -> None:
    w = world({"orders": 4})
    with reading(w, startingPosition="LATEST") as r:
        for part in range(5):
            w.put(numbered(50, first=50 * part))
            r.until(50 * (part + 1))
        assert all(before[1] == after[0] for before, after in pairwise(r.batches))
        assert all(end[key].reaches(start[key]) for start, end in r.batches for key in end)
        assert json.loads(r.offset.to_json())["version"] == 1


def _within(row: Row, wanted: ShardRange) -> bool:
    return wanted.after.value < row.sequence <= wanted.through.value


def _open(w: World) -> int:
    return sum(s.consumer.stream.name in w.streams.values() for s in w.aws.kinesis.subscriptions)


def test_one_call_reads_many_ranges_in_order(world: MakeWorld) -> None:
    w = world({"orders": 4})
    w.put(numbered(2000, size=500))
    with reading(w) as r:

        def all_there() -> bool:
            reply = r.calls.poll(r.offset, max_bytes=1 << 60, max_records=1 << 60, timeout=0.2)
            return sum(shard.records for shard in reply.shards) == 2000

        wait_until(all_there)
        ranges = r.offset.ranges_to(r.poll())
        # A range that ends where it starts has nothing; it leaves no gap and no answer.
        empty = ShardRange(ranges[1].key, ranges[1].through, ranges[1].through)
        asked = [ranges[2], empty, ranges[0], ranges[3], ranges[1]]
        answers = [(answer.wanted, [bytes(payload) for payload in answer.payloads]) for answer in r.client.get(asked)]
        assert [wanted for wanted, _ in answers] == [ranges[2], ranges[0], ranges[3], ranges[1]]
        assert sum(payload.count(b'"SequenceNumber"') for _, payloads in answers for payload in payloads) == 2000
        # What is left of a range is dropped when the next one is asked for.
        left = [(answer.wanted, next(answer.payloads) is not None) for answer in r.client.get(asked)]
        assert [wanted for wanted, _ in left] == [ranges[2], ranges[0], ranges[3], ranges[1]]


def test_query_begins_at_the_start_of_each_shard(world: Callable[..., World]) -> None:
    w = world({"orders": 2, "clicks": 1})
    w.put([(f"k{n}", b"%d" % n) for n in range(40)])
    w.aws.backdate(w.streams["clicks"], 10)  # `LATEST` is up to a second early
    w.put([("old", b"old")], "clicks")
    w.aws.backdate(w.streams["clicks"], 0)
    _, second = sorted(shard["ShardId"] for shard in w.shards())
    iterator = w.kinesis.get_shard_iterator(
        StreamName=w.streams["orders"], ShardId=second, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    there = w.kinesis.get_records(ShardIterator=iterator)["Records"]
    # The shard that is told where to begin ends, and its children follow it; the other one begins at the horizon.
    begin = {"orders": {second: f"AFTER:{there[2]['SequenceNumber']}", "*": "TRIM_HORIZON"}, "*": "LATEST"}
    w.kinesis.split_shard(StreamName=w.streams["orders"], ShardToSplit=second, NewStartingHashKey=str(3 * 2**126))
    w.wait_active()
    skipped = {int(record["Data"]) for record in there[:3]}
    with reading(w, startingPosition=json.dumps(begin)) as r:
        w.put([(f"k{n}", b"%d" % n) for n in range(40, 60)])
        w.put([("new", b"100")], "clicks")
        rows = r.until(60 - 3 + 1)
        r.batch()
    assert sorted(int(row.data) for row in rows) == sorted({*range(60), 100} - skipped)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        ({"visits": "LATEST"}, r"'startingPosition' names 'visits', but the query reads 'orders'"),
        (
            {"orders": {"shardId-000000000009": "LATEST"}},
            r"stream 'orders': .* names shard 'shardId-000000000009', which",
        ),
    ],
)
def test_start_that_names_a_missing_shard_is_refused(
    world: Callable[..., World], begin: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message), reading(world(), startingPosition=json.dumps(begin)):
        pass
