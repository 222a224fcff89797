"""The source read by a real Spark session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kinesis_efo
from tests.integration.spark.conftest import Queries
from tests.support.aggregates import as_the_kpl
from tests.support.world import World, wait_for_rows, wait_until


@pytest.mark.spark
def test_a_new_query_reads_old_and_new_records(
    spark: SparkSession, world: Callable[..., World], tmp_path: Path
) -> None:
    w = world({"orders": 2})
    w.put((f"k{n % 7}", f"before {n}".encode()) for n in range(1000))
    df = kinesis_efo.read_stream(
        spark,
        manifest=str(w.manifest),
        endpointUrl=w.aws.endpoint_url,
        leaseTimeout="10s",
        startingPosition="TRIM_HORIZON",
    )
    query = df.writeStream.format("memory").queryName("both").option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        wait_for_rows(query, 1000)
        w.put((f"k{n % 7}", f"after {n}".encode()) for n in range(500))
        wait_for_rows(query, 1500)
        assert query.exception() is None
    finally:
        query.stop()
    rows = spark.table("both").collect()
    assert {bytes(row.data) for row in rows} == {f"before {n}".encode() for n in range(1000)} | {
        f"after {n}".encode() for n in range(500)
    }
    wait_until(lambda: all("leaseOwner" not in row for row in w.leases().values()), 60)


@pytest.mark.spark40
def test_an_idle_source_does_not_delay_another(
    queries: Queries, world: Callable[..., World], spark: SparkSession
) -> None:
    busy, idle = world(), world()
    busy.put((f"k{n}", b"%d" % n) for n in range(100))
    # Ten micro-batches, of an event each.
    rows = queries.load(busy, maxRecordsPerTrigger="10").union(queries.load(idle, pollTimeout="6s"))
    query = queries.start(rows, "union")
    wait_for_rows(query, 10, seconds=90)  # a session's first query takes its time to start
    # Nine more would wait for 54 s in all, if the idle source held each up.
    wait_for_rows(query, 100, seconds=50)
    batches = {progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]}
    assert len(batches) >= 10


@pytest.mark.long
@pytest.mark.spark40
def test_strict_reading_delivers_aggregates_of_auto_distribution(
    queries: Queries, world: Callable[..., World], spark: SparkSession
) -> None:
    w = world({"orders": 8})
    arn = w.kinesis.describe_stream_summary(StreamName=w.streams["orders"])["StreamDescriptionSummary"]["StreamARN"]

    def distribute(strategy: str) -> None:
        w.kinesis.update_stream_record_distribution_strategy(StreamARN=arn, RecordDistributionStrategy=strategy)

    def put(first: int) -> None:
        parcels = list(as_the_kpl(((f"key-{n}", b"%d" % n) for n in range(first, first + 10_000)), shards=8))
        assert w.kinesis.put_records(StreamARN=arn, Records=parcels)["FailedRecordCount"] == 0

    def found(**options: str) -> list[int]:
        query = queries.start(queries.load(w, **options), f"auto_{len(queries.started)}")
        wait_for_rows(query, 20_008)
        query.stop()
        rows = spark.table(query.name).collect()
        # Of records that came without a partition key.
        assert [row.data for row in rows if row.partitionKey is None] == [b"-1"] * 8
        return sorted(int(bytes(row.data)) for row in rows if row.partitionKey is not None)

    put(0)
    w.kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    distribute("AUTO")
    put(10_000)
    w.kinesis.put_records(StreamARN=arn, Records=[{"Data": b"-1"}] * 8)
    assert found() == list(range(20_000))
    assert found(deaggregate="strict") == list(range(20_000))
