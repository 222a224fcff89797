"""The source read by a real Spark session."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import python_streaming_source_runner as runner

from kinesis_efo.driver.listener import BatchProgress, LagListener
from kinesis_efo.planner.host import spark_jvm
from kinesis_efo.positions import ShardKey
from tests.integration.spark.conftest import Queries, listening
from tests.support.world import World, wait_for_rows, wait_until


@pytest.mark.spark
def test_a_new_query_reads_reports_and_releases(
    spark: SparkSession, world: Callable[..., World], queries: Queries, tmp_path: Path
) -> None:
    w = world({"orders": 2})
    w.put((f"k{n % 7}", b"%08d" % n + b"x" * 392) for n in range(1000))
    seen: list[BatchProgress] = []
    listener = LagListener(seen.append)
    lines = tmp_path / "emf.log"
    df = queries.load(w, leaseTimeout="60s", metricsExport=f"emf:{lines}:1s")
    assert df.columns == [
        "data", "partitionKey", "sequenceNumber", "subSequenceNumber", "approximateArrivalTimestamp", "stream", "shardId",
    ]  # fmt: skip
    spark.streams.addListener(listener)
    try:
        query = queries.start(df, "both")
        wait_for_rows(query, 1000)
        run = w.reader()
        planner = run.parent()
        assert runner.__name__ in planner.cmdline(), "the process that Spark keeps for the source"
        assert listening(run) == listening(planner) == {"127.0.0.1"}
        assert spark_jvm(planner.pid, {}).local, "seen by what the JVM does"
        w.put((f"k{n % 7}", b"%08d" % n + b"x" * 392) for n in range(1000, 1500))
        wait_until(lambda: sum(batch.rows for batch in seen) == 1500, 60)
    finally:
        spark.streams.removeListener(listener)
    assert sum(batch.data_bytes or 0 for batch in seen) == pytest.approx(1500 * 400, rel=0.1), seen
    assert sum(batch.bytes or 0 for batch in seen) > 1500 * (400 * 4 / 3 + 150), "as Kinesis sends them"
    lags = seen[-1].millis_behind
    assert lags.keys() == {ShardKey("orders", f"shardId-{n:012d}") for n in range(2)}
    assert all(0 <= millis < 60_000 for millis in lags.values())

    def fetched() -> int:
        return sum(json.loads(line).get("RecordsFetched", 0) for line in lines.read_text().splitlines())

    wait_until(lambda: lines.exists() and fetched() == 1500, 30)
    counted = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {(line["Application"], line["Environment"]) for line in counted} == {("lake", "test")}
    assert {line["Shard"] for line in counted if "Shard" in line} == {key.shard for key in lags}
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 20
    assert sorted(int(row.data[:8]) for row in spark.table(query.name).collect()) == list(range(1500))
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
