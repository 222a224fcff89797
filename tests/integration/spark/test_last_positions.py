"""The checkpoints that a query leaves in the lease table when it stops: those of the last micro-batch that Spark has finished."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import kinesis_efo
from kinesis_efo.leases.row import Lease
from kinesis_efo.tasks.compat import SPARK_VERSION
from kinesis_efo_tools.operate.live import ask
from tests.support.world import World, wait_until

from .conftest import Queries

MakeWorld = Callable[..., World]

ALL_NOW = {"catchUp": "true", "readMode": "polling"} if SPARK_VERSION < (4, 2) else {}
"""Whom a subscription has told where the end is waits 5 s for the next; what is tested here does not depend on the mode."""


def load(spark: SparkSession, w: World, **options: Any) -> DataFrame:
    return kinesis_efo.read_stream(
        spark, **{**w.options, "leaseTimeout": "10s", "startingPosition": "TRIM_HORIZON", **options}
    )


def released(w: World) -> None:
    wait_until(lambda: all("leaseOwner" not in row for row in w.leases().values()), 60, "released leases")


def checkpoints(w: World) -> dict[str, str]:
    return {key: row["checkpoint"]["S"] for key, row in w.leases().items() if not key.startswith("#")}


def put(w: World, count: int) -> dict[str, str]:
    """Put records, and tell the last number of each shard by its lease key."""
    last: dict[str, int] = {}
    for number in range(count):
        answer = w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey=f"k{number}", Data=b"%d" % number)
        key = f"orders:{answer['ShardId']}"
        last[key] = max(last.get(key, 0), int(answer["SequenceNumber"]))
    assert len(last) == 2
    return {key: str(number) for key, number in last.items()}


@pytest.mark.spark
def test_what_was_available_is_where_the_lease_table_stands(
    spark: SparkSession, world: MakeWorld, queries: Queries
) -> None:
    w = world({"orders": 2})
    last = put(w, 40)
    read: list[int] = []

    def count(df: DataFrame, _: int) -> None:
        read.append(df.count())

    query = queries.start(load(spark, w, **ALL_NOW), count, availableNow=True)
    assert query.awaitTermination(120)
    assert sum(read) == 40
    released(w)
    assert checkpoints(w) == last


@pytest.mark.spark
def test_a_stop_between_two_triggers_leaves_the_positions_of_the_first(
    spark: SparkSession, world: MakeWorld, queries: Queries
) -> None:
    w = world({"orders": 2})
    put(w, 40)
    read: dict[str, int] = {}

    def note(df: DataFrame, _: int) -> None:
        # One shard's records may arrive after the first trigger: what counts is what this micro-batch has read.
        for row in df.select("shardId", "sequenceNumber").collect():
            key = f"orders:{row['shardId']}"
            read[key] = max(read.get(key, 0), int(row["sequenceNumber"]))

    def reads_at_its_first_trigger() -> bool:
        """Start the query, and stop it while it waits for its second trigger; tell whether the first one had records."""
        query = queries.start(load(spark, w, **ALL_NOW), note, processingTime="1 hour")
        wait_until(lambda: query.status["message"] == "Waiting for next trigger", 60, "the end of the first trigger")
        query.stop()
        released(w)
        return bool(read)

    # At the first trigger no record may have arrived yet, and the second one is an hour away: the query is started again.
    assert any(reads_at_its_first_trigger() for _ in range(5))
    unread = dict.fromkeys(checkpoints(w), "TRIM_HORIZON")
    assert checkpoints(w) == unread | {key: str(number) for key, number in read.items()}


@pytest.mark.spark40
def test_a_micro_batch_that_fails_moves_nothing(
    spark: SparkSession, world: MakeWorld, queries: Queries, tmp_path: Path
) -> None:
    w = world({"orders": 2})
    put(w, 40)

    def fail(df: DataFrame, _: int) -> None:
        df.count()
        raise RuntimeError("the sink is broken")

    query = queries.start(load(spark, w, **ALL_NOW), fail, availableNow=True)
    with pytest.raises(StreamingQueryException, match="the sink is broken"):
        query.awaitTermination(120)
    released(w)
    assert set(checkpoints(w).values()) == {"TRIM_HORIZON"}


@pytest.mark.spark
def test_query_with_a_copied_checkpoint_is_committed_by_itself(
    spark: SparkSession, world: MakeWorld, queries: Queries
) -> None:
    """Both plan micro-batches with the same marks. One is stuck in its sink, while the other one finishes some."""
    w = world({"orders": 2})
    put(w, 40)
    rows: dict[str, list[int]] = {"first": [], "copy": []}
    freed = threading.Event()

    def start(name: str) -> StreamingQuery:
        def write(df: DataFrame, _: int) -> None:
            found = [int(row.data) for row in df.select("data").collect()]
            if found and name == "copy":
                freed.wait(60)
            rows[name] += found

        write.__name__ = name
        return queries.start(load(spark, w), write)

    def done() -> list[int]:
        """How many records the run counts as processed, for each query."""
        run = Lease.from_item(w.leases()["#run:orders"])
        assert run is not None
        (status,) = asyncio.run(ask({"orders": run})).answers.values()
        return sorted(each.records_done for each in status.queries)

    first = start("first")
    wait_until(lambda: len(rows["first"]) == 40, 60, "the first rows")
    first.stop()
    released(w)
    before = checkpoints(w)
    shutil.copytree(queries.directory / "checkpoint-first", queries.directory / "checkpoint-copy")
    both = start("first"), start("copy")
    for count in (80, 120):
        put(w, 40)
        wait_until(
            lambda count=count: any(each.exception() for each in both) or len(rows["first"]) == count, 90, "more rows"
        )
    assert [each.exception() for each in both] == [None, None]
    wait_until(lambda: done()[-1] >= 40, 30, "the report of a micro-batch")
    assert (done()[0], rows["copy"], checkpoints(w)) == (0, [], before), "the copy has finished nothing"
    freed.set()
    wait_until(lambda: len(rows["copy"]) == 80, 60, "the rows of the copy")
    assert sorted(rows["first"]) == sorted([*range(40)] * 3)
    assert sorted(rows["copy"]) == sorted([*range(40)] * 2)
    wait_until(lambda: done()[0] >= 40, 30, "its report")
