"""The source read by a real Spark session, on both Spark versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kinesis_efo
from tests.support.world import World, wait_for_rows, wait_until

pytestmark = pytest.mark.spark


def test_a_new_query_reads_what_is_there_and_what_comes(
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
    wait_until(lambda: all("leaseOwner" not in row for row in w.leases().values()), 10)
