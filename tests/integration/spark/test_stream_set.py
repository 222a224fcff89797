"""Streams that come and go between two runs of a query: nothing is missed in silence, nothing is read twice."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo.driver.listener import BatchProgress, LagListener
from kinesis_efo.tasks.compat import SPARK_VERSION
from kinesis_efo_tools.operate.spark_checkpoint import folder_at, planned
from tests.integration.spark.conftest import Queries, Rows
from tests.support.arriving import numbered
from tests.support.world import World, wait_until


def put(world: World, stream: str, *names: str) -> list[tuple[str, str]]:
    world.put([(name, name.encode()) for name in names], stream)
    return [(stream, name) for name in names]


@pytest.mark.spark
def test_a_query_that_ends_reads_a_new_stream(world: Callable[..., World], queries: Queries) -> None:
    w, rows = world({"orders": 1, "clicks": 1}), Rows()
    first, second = put(w, "orders", "o1"), put(w, "clicks", "c1", "c2")

    def read() -> list[tuple[str, str]]:
        return sorted((row.stream, bytes(row.data).decode()) for row in rows.all)

    # On Spark 4.0 such a run has one micro-batch, which begins the new stream and reads nothing of it.
    # The runs around the one that begins it poll, which is quicker.
    runs = [
        ({"streams": "orders", "readMode": "polling"}, first),
        ({"streams": "*"}, first + second if SPARK_VERSION >= (4, 2) else first),
        ({"streams": "*", "readMode": "polling"}, first + second),
    ]
    for options, expected in runs:
        if read() != sorted(first + second):
            query = queries.start(queries.load(w, catchUp="true", **options), rows, availableNow=True)
            assert query.awaitTermination(120)
        assert read() == sorted(expected)


# -- sources with names: Spark lets a query get another one between two runs, and keep its checkpoint

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


@pytest.mark.spark43
def test_a_query_gets_another_source_on_its_checkpoint(
    world: Callable[..., World], queries: Queries, seen: list[BatchProgress]
) -> None:
    w, rows = world({"orders": 1, "clicks": 1}), Rows()

    def source(stream: str) -> DataFrame:
        return queries.read_stream(w, streams=stream, name=stream)

    def run(frame: DataFrame, records: int) -> None:
        query = queries.start(frame, rows)
        rows.wait_for(query, records)
        query.processAllAvailable()
        query.stop()

    w.put(numbered(10))
    run(source("orders"), 10)
    w.put(numbered(10, first=10))
    w.put(numbered(10, first=20), "clicks")
    run(source("orders").union(source("clicks")), 30)
    assert sorted(rows.numbers) == list(range(30))
    wait_until(lambda: sum(each.rows for each in seen) == 30, 60)
    checkpoint = folder_at(str(queries.directory / "checkpoint-rows"), None)  # type: ignore[arg-type]
    found = asyncio.run(planned(checkpoint))
    assert found is not None
    assert sorted(key.stream for end in found.ends for key in end.offset) == ["clicks", "orders"]
