"""A fetcher over real HTTP and a real service: ranges, repetition, leases, resharding, what goes wrong."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kinesis_efo.errors import (
    FetcherError,
    FetcherUnreachableError,
    LeaseTableError,
    StreamNotFoundError,
)
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange
from kinesis_efo.tasks.client import FetcherClient
from tests.support.aggregates import aggregated
from tests.support.fetching import reading
from tests.support.messages import raises
from tests.support.world import World, wait_until

MakeWorld = Callable[..., World]
EVERYTHING = ShardRange(ShardKey("orders", "shardId-000000000000"), TRIM_HORIZON, SHARD_END)


def numbered(count: int, size: int = 0, keys: int = 7, first: int = 0) -> list[tuple[str, bytes]]:
    return [(f"k{n % keys}", f"{n:08d}".encode().ljust(size)) for n in range(first, first + count)]


[AGGREGATE] = [parcel["Data"] for parcel in aggregated(("k", data) for _, data in numbered(10))]


def put_one(w: World, data: Any) -> int:
    """Put a record, and return its number."""
    put = w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=data)
    return int(put["SequenceNumber"])


def large(w: World) -> ShardRange:
    """Put 601 records, many times what a small buffer can have, and return their range."""
    w.put(numbered(600, size=10_000))
    return EVERYTHING._replace(through=Position.after(put_one(w, b"z")))


def test_departed_reader_does_not_delay_the_next(world: MakeWorld) -> None:
    w = world()
    whole = large(w)
    with reading(w, bufferBytes="1m") as r:
        r.calls.repeats(whole)
        with FetcherClient(r.runtime.address, r.runtime.secret) as impatient:
            answers = impatient.get([whole])
            next(next(answers).payloads)
            answers.close()
        assert len(r.read(whole)) == 601


def test_distant_readers_do_not_evict_each_others_events(world: MakeWorld) -> None:
    w = world()
    whole = large(w)
    with reading(w, bufferBytes="1m") as r:
        r.calls.repeats(whole)
        with FetcherClient(r.runtime.address, r.runtime.secret) as ahead:
            answers = ahead.get([whole])
            payloads = next(answers).payloads
            first = next(payloads)
            with ThreadPoolExecutor(1) as pool:
                behind = pool.submit(r.read, whole)
                rest = sum(1 for _ in payloads)
                assert len(behind.result(60)) == 601
        assert first
        assert rest >= 6


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


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_row_after_an_aggregate_has_its_last_index(world: MakeWorld, mode: str) -> None:
    w = world()
    put_one(w, b"before")
    last = put_one(w, AGGREGATE)
    with reading(w, readMode=mode) as r:
        r.until(11)
        r.commit()
    row = w.leases()["orders:shardId-000000000000"]
    assert row["checkpoint"] == {"S": str(last)}
    assert row["checkpointSubSequenceNumber"] == {"N": "9"}
    with reading(w, startingPosition="LEASES", readMode=mode) as r:
        put_one(w, b"behind")
        assert [row.data for row in r.until(1)] == [b"behind"]


@pytest.mark.parametrize("mode", ["efo", "polling"])
def test_starting_where_a_kcl_application_stopped_inside_an_aggregate(world: MakeWorld, mode: str) -> None:
    w = world()
    put = [put_one(w, data) for data in (b"before", AGGREGATE, AGGREGATE, b"behind")]
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
