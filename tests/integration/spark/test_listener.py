"""What users see of a running query: progress with bytes and the lag of each shard, and metrics of the process that Spark starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kinesis_efo.driver.listener import BatchProgress, LagListener
from kinesis_efo.positions import ShardKey
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_until

pytestmark = pytest.mark.spark


def test_a_query_reports_its_lag_and_metrics(
    spark: SparkSession, world: Callable[..., World], queries: Queries, tmp_path: Path
) -> None:
    w = world({"orders": 2})
    w.put([(f"customer-{n:03}", b"x" * 400) for n in range(100)])
    seen: list[BatchProgress] = []
    listener = LagListener(seen.append)
    spark.streams.addListener(listener)
    lines = tmp_path / "emf.log"
    try:
        queries.start(queries.load(w, metricsExport=f"emf:{lines}:1s"), "lagging")
        wait_until(lambda: sum(batch.rows for batch in seen) == 100, 60)
    finally:
        spark.streams.removeListener(listener)
    assert sum(batch.data_bytes or 0 for batch in seen) == pytest.approx(100 * 400, rel=0.1), seen
    assert sum(batch.bytes or 0 for batch in seen) > 100 * (400 * 4 / 3 + 150), "as Kinesis sends them"
    lags = seen[-1].millis_behind
    assert lags.keys() == {ShardKey("orders", f"shardId-{n:012d}") for n in range(2)}
    assert all(0 <= millis < 60_000 for millis in lags.values())
    wait_until(
        lambda: (
            lines.exists()
            and sum(json.loads(line).get("RecordsFetched", 0) for line in lines.read_text().splitlines()) == 100
        ),
        30,
    )
