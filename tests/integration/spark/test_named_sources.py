"""Sources with names: Spark lets a query get another one between two runs, and keep its checkpoint."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from kinesis_efo.driver.listener import BatchProgress, LagListener
from kinesis_efo_tools.operate.spark_checkpoint import folder_at, planned
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_until

pytestmark = pytest.mark.spark43

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture
def seen(spark: SparkSession) -> Iterator[list[BatchProgress]]:
    """What a listener hears, in a session in which sources have names."""
    heard: list[BatchProgress] = []
    listener = LagListener(heard.append)
    spark.streams.addListener(listener)
    spark.conf.set(EVOLUTION, "true")
    yield heard
    spark.conf.unset(EVOLUTION)
    spark.streams.removeListener(listener)


def test_a_query_gets_another_source_on_its_checkpoint(
    spark: SparkSession, world: Callable[..., World], queries: Queries, seen: list[BatchProgress]
) -> None:
    w = world({"orders": 1, "clicks": 1})
    read: list[int] = []

    def source(stream: str) -> DataFrame:
        given = {**w.options, "leaseTimeout": "10s", "startingPosition": "TRIM_HORIZON", "streams": stream}
        return kinesis_efo.read_stream(spark, **given, name=stream)

    def keep(batch: DataFrame, _: int) -> None:
        read.extend(int(row.data) for row in batch.select("data").collect())

    def run(frame: DataFrame, records: int) -> None:
        query: Any = queries.start(frame, keep)
        wait_until(lambda: query.exception() is not None or len(read) >= records, 60)
        query.processAllAvailable()
        query.stop()

    w.put([(str(number), b"%d" % number) for number in range(10)], "orders")
    run(source("orders"), 10)
    w.put([(str(number), b"%d" % number) for number in range(10, 20)], "orders")
    w.put([(str(number), b"%d" % number) for number in range(20, 30)], "clicks")
    run(source("orders").union(source("clicks")), 30)
    assert sorted(read) == list(range(30))
    wait_until(lambda: sum(each.rows for each in seen) == 30, 60)
    checkpoint = folder_at(str(queries.directory / "checkpoint-keep"), None)  # type: ignore[arg-type]
    found = asyncio.run(planned(checkpoint))
    assert found is not None
    assert sorted(key.stream for end in found.ends for key in end.offset) == ["clicks", "orders"]
