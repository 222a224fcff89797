"""Batch reads, as a real Spark shows them: the rows of a streaming query, an end that stays, limits, and what is refused."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession

import kinesis_efo
from tests.support.arriving import numbered
from tests.support.world import World, wait_for_rows, wait_until

from .conftest import Queries, numbers

MakeWorld = Callable[..., World]

QUICK = {"maxShardRate": "2m"}
"""As fast as Kinesis allows; tests of the limits leave it out."""


def load(spark: SparkSession, w: World, **options: str) -> DataFrame:
    given = {"manifest": str(w.manifest), "endpointUrl": w.aws.endpoint_url, **options}
    return spark.read.format("kinesis-efo").options(**given).load()


def alike(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    """The rows, however often each; Spark 4.0 gives binary columns as `bytearray`."""
    return Counter((bytes(row["data"]), *row[1:7]) for row in rows)


def calls(w: World) -> list[Any]:
    """The calls to Kinesis so far that read the world's stream."""
    return [
        call
        for call in list(w.aws.kinesis.trace)
        if (call.params.get("StreamARN") or "").endswith(f"/{w.streams['orders']}")
    ]


@pytest.mark.spark40
def test_batch_rows_equal_streaming_rows_over_reshards(spark: SparkSession, world: MakeWorld, queries: Queries) -> None:
    w = world({"orders": 2})
    put = w.put(numbered(300))
    first, _ = (shard["ShardId"] for shard in w.shards())
    w.kinesis.split_shard(StreamName=w.streams["orders"], ShardToSplit=first, NewStartingHashKey=str(2**125))
    w.wait_active()
    aggregator = RecordAggregator()
    for key, data in numbered(10, first=300):
        # All of one hash key, so that the aggregate belongs to one shard whatever becomes of the shards.
        aggregator.add_user_record(key, data, "1")
    key, hash_key, data = aggregator.clear_and_get().get_contents()
    w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey=key, ExplicitHashKey=hash_key, Data=data)
    put += 10 + w.put(numbered(300, first=310))
    left, right = (shard["ShardId"] for shard in w.shards() if shard.get("ParentShardId") == first)
    w.kinesis.merge_shards(StreamName=w.streams["orders"], ShardToMerge=left, AdjacentShardToMerge=right)
    w.wait_active()
    middle = datetime.now(UTC)
    wait_until(lambda: datetime.now(UTC) - middle > timedelta(milliseconds=10))
    put += w.put(numbered(300, first=610))

    query = queries.start(queries.load(w), "streamed")
    wait_for_rows(query, put)
    query.stop()
    stopped = time.time()
    streamed = alike(spark.table("streamed0").collect())
    assert len(w.shards()) == 5
    assert len(streamed) == put == 910
    assert not [call for call in calls(w) if call.operation == "SubscribeToShard" and call.time > stopped]

    at = {"maxShardRate": "2m", "endpointUrl": w.aws.endpoint_url}
    before = kinesis_efo.read(spark, manifest=str(w.manifest), streams="orders", until=middle, **at)
    behind = kinesis_efo.read(spark, manifest=str(w.manifest), streams=["orders"], since=middle.isoformat(), **at)
    rows = before.selectExpr("*", "spark_partition_id() as task").collect(), behind.collect()
    assert [sorted(numbers(some)) for some in rows] == [list(range(610)), list(range(610, 910))]
    assert len({row["task"] for row in rows[0]}) > 1, "the shards are shared out over the cores"
    assert alike(rows[0]) + alike(rows[1]) == streamed


@pytest.mark.spark43
def test_every_action_sees_the_end_of_its_load(spark: SparkSession, world: MakeWorld) -> None:
    w = world()
    w.put(numbered(50))
    (arn,) = (consumer.split("/consumer/")[0] for consumer in w.consumers.values())
    # A stream without a manifest needs its ARN alone.
    df = kinesis_efo.read(spark, streamArn=arn, endpointUrl=w.aws.endpoint_url, maxShardRate="2m")
    loaded = time.time()
    assert sorted(numbers(df.collect())) == list(range(50)), "what was acknowledged before load() is there"
    wait_until(lambda: time.time() > loaded + 1.2)
    w.put(numbered(50, first=50))
    assert df.count() == 50
    assert load(spark, w, **QUICK).count() == 100


@pytest.mark.spark43
def test_a_task_failing_midway_reads_equal_rows_again(spark: SparkSession, world: MakeWorld, tmp_path: Path) -> None:
    w = world()
    w.put(numbered(15_000, size=80))
    flag = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not flag.exists():
                flag.touch()
                raise RuntimeError("the first batch is through")

    df = load(spark, w, **QUICK)
    assert sorted(numbers(df.mapInArrow(fail_once, df.schema).collect())) == list(range(15_000))
    assert flag.exists()


@pytest.mark.spark40
def test_source_returns_kinesis_time_as_its_only_row(spark: SparkSession, world: MakeWorld) -> None:
    """A client of Spark Connect asks for it, because its clock may be off."""
    w = world()
    before = time.time()
    told = load(spark, w, **{"session.batch": "true", "session.clock": "true"}).first()
    assert told is not None
    assert before - 2 < told["subSequenceNumber"] / 1000 < time.time() + 2
    assert "GetRecords" not in {call.operation for call in calls(w)}


@pytest.mark.long
@pytest.mark.spark40
def test_a_cancelled_job_stops_reading(spark: SparkSession, world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put(numbered(40_000, size=1_000))
    ended: list[Exception] = []

    def count() -> None:
        spark.sparkContext.setJobGroup("batch", "reads for 20 s")
        try:
            load(spark, w).count()
        except Exception as error:
            ended.append(error)

    thread = InheritableThread(target=count)
    thread.start()
    wait_until(lambda: sum(call.operation == "GetRecords" for call in calls(w)) > 4, 60, "a job that reads")
    cancelled = time.time()
    spark.sparkContext.cancelJobGroup("batch")
    thread.join(30)
    assert "cancelled" in str(ended[0])
    wait_until(lambda: time.time() > cancelled + 6, 20)
    assert max(call.time for call in calls(w)) < cancelled + 5


@pytest.mark.spark43
def test_actions_with_different_filters_see_their_rows(spark: SparkSession, world: MakeWorld) -> None:
    w = world()
    w.put(numbered(20))
    setting = "spark.sql.python.filterPushdown.enabled"
    for enabled in ("true", "false"):
        spark.conf.set(setting, enabled)
        try:
            df = load(spark, w)
            late = df.filter(f"approximateArrivalTimestamp >= timestamp'{datetime.now(UTC) + timedelta(hours=1)}'")
            # With a reader that takes filters, Spark 4.3 keeps those of the first action for all that follow.
            assert (late.count(), df.filter("shardId is not null").count(), df.count()) == (0, 20, 20)
        finally:
            spark.conf.unset(setting)
