"""The checkpoints that a query leaves in the lease table when it stops: those of the last micro-batch that Spark has finished."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from kinesis_efo.tasks.compat import SPARK_VERSION
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
def test_lease_table_has_the_end_of_available_now(spark: SparkSession, world: MakeWorld, queries: Queries) -> None:
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
