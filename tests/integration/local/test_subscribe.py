"""SubscribeToShard with the stock boto3 client: what is pushed, when, and how it ends."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import EventStreamError

from tests.support.world import wait_until

from .conftest import Bench

Run = Callable[..., Bench]


def keys(event: Any) -> list[str]:
    return [record["PartitionKey"] for record in event["Records"]]


def reader(run: Run, **settings: Any) -> tuple[Bench, str]:
    """A stream of one shard, and its consumer."""
    bench = run(**settings)
    return bench, bench.consumer(bench.stream())


def open_count(bench: Bench) -> int:
    return len(bench.aws.kinesis.subscriptions)


def test_existing_records_come_first_and_new_ones_soon(run: Run) -> None:
    bench, consumer = reader(run)
    bench.put("a", "b", data=bytes(range(256)))
    events = bench.subscribe(consumer)
    first = next(events)
    assert keys(first) == ["a", "b"]
    assert first["MillisBehindLatest"] == 0
    assert first["Records"][0]["Data"] == bytes(range(256))
    assert abs(first["Records"][0]["ApproximateArrivalTimestamp"].timestamp() - time.time()) < 60
    delays = []
    for number in range(20):
        start = time.monotonic()
        bench.put(f"k{number}")
        event = next(events)
        while not event["Records"]:
            event = next(events)
        delays.append(time.monotonic() - start)
        assert keys(event) == [f"k{number}"]
    # Pushed by notification: polling for it would show in the median.
    assert sorted(delays)[10] < 0.05


def test_removed_consumer_ends_its_subscriptions(bench: Bench) -> None:
    consumer = bench.consumer(bench.stream())
    events = bench.subscribe(consumer)
    next(events)
    bench.client.deregister_stream_consumer(ConsumerARN=consumer)
    with pytest.raises(EventStreamError, match="ResourceNotFoundException"):
        list(events)
    wait_until(lambda: open_count(bench) == 0)


def test_event_has_a_megabyte_or_one_record(bench: Bench) -> None:
    consumer = bench.consumer(bench.stream(MaxRecordSizeInKiB=10240))
    bench.put("big", data=b"x" * (10 * 1024 * 1024 - 3))
    for _ in range(2):
        bench.put(*"abcde", data=b"x" * 400_000)
    sizes = []
    for event in bench.subscribe(consumer):
        sizes.append([len(record["Data"]) for record in event["Records"]])
        if sum(map(len, sizes)) == 11:
            break
    assert sizes == [[10 * 1024 * 1024 - 3], *[[400_000] * 2] * 5]


def test_reading_is_limited_to_two_mebibytes_a_second(run: Run) -> None:
    bench, consumer = reader(run, read_limit=True)
    for _ in range(5):
        bench.put("k", data=b"x" * 1_000_000)
    start = time.monotonic()
    events = bench.subscribe(consumer)
    got = 0
    while got < 5:
        got += len(next(events)["Records"])
    # 5 MB less the burst of 2 MiB, at 2 MiB/s.
    assert time.monotonic() - start > 1.2


def test_slow_reader_is_cut_off_without_blocking_others(run: Run) -> None:
    bench = run(subscription_seconds=1)
    stream = bench.stream()
    slow, quick = bench.consumer(stream, "slow"), bench.consumer(stream, "quick")
    for _ in range(20):
        bench.put("k", data=b"x" * 1_000_000)
    answer = bench.client.subscribe_to_shard(
        ConsumerARN=slow, ShardId="shardId-000000000000", StartingPosition={"Type": "TRIM_HORIZON"}
    )
    # On a slow machine, more than one subscription of a second is needed.
    events = list(bench.subscribe(quick))
    while sum(len(event["Records"]) for event in events) < 20:
        events += bench.subscribe(
            quick, "AFTER_SEQUENCE_NUMBER", SequenceNumber=events[-1]["ContinuationSequenceNumber"]
        )
    wait_until(lambda: open_count(bench) == 0)
    answer["EventStream"].close()
