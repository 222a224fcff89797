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
    """Both plan the same micro-batch, by its mark, and one of them finishes it."""
    w = world({"orders": 2})
    put(w, 40)
    rows: dict[str, list[int]] = {"first": [], "copy": []}
    copied, planned, freed = threading.Event(), threading.Event(), threading.Event()

    def start(name: str) -> StreamingQuery:
        def write(df: DataFrame, _: int) -> None:
            found = [int(row.data) for row in df.select("data").collect()]
            if found and name == "copy":
                planned.set()
                freed.wait(120)
            elif found and copied.is_set():
                planned.wait(120)
            rows[name] += found

        write.__name__ = name
        return queries.start(load(spark, w), write)

    def done() -> list[int]:
        """How many records the run counts as processed, for each query."""
        run = Lease.from_item(w.leases()["#run:orders"])
        assert run is not None
        (status,) = asyncio.run(ask({"orders": run})).answers.values()
        return sorted(each.records_done for each in status.queries)

    def written(log: str) -> set[str]:
        return {file.name for file in (queries.directory / "checkpoint-first" / log).glob("[0-9]*")}

    started = [start("first")]

    def rows_of(name: str, count: int) -> None:
        failed = wait_until(
            lambda: [each for each in started if each.exception()] or len(rows[name]) == count, 120, f"rows of {name}"
        )
        assert failed is True, failed

    rows_of("first", 40)
    wait_until(lambda: written("offsets") == written("commits"), 60, "the end of the micro-batch")
    shutil.copytree(queries.directory / "checkpoint-first", queries.directory / "checkpoint-copy")
    copied.set()
    put(w, 40)
    started.append(start("copy"))
    rows_of("first", 80)
    wait_until(lambda: done()[-1] == 80, 30, "the report of the micro-batch")
    assert (done()[0], rows["copy"]) == (0, []), "the copy has finished nothing"
    freed.set()
    rows_of("copy", 40)
    assert [sorted(each) for each in rows.values()] == [sorted([*range(40)] * 2), [*range(40)]]
    wait_until(lambda: done()[0] == 40, 30, "its report")
