"""Batch reads, as a real Spark shows them: the rows of a streaming query, an end that stays, limits, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.world import World

pytestmark = pytest.mark.spark
MakeWorld = Callable[..., World]


def load(spark: SparkSession, w: World, **options: Any) -> DataFrame:
    given = {"manifest": str(w.manifest), "endpointUrl": w.aws.endpoint_url, **options}
    return (
        spark.read.format("kinesis-efo")
        .options(**{name.replace("_", "."): value for name, value in given.items()})
        .load()
    )


def test_everything_up_to_the_tip_is_read(spark: SparkSession, world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put((f"k{n}", b"%d" % n) for n in range(100))
    df = load(spark, w)
    assert sorted(int(bytes(row["data"])) for row in df.collect()) == list(range(100))
    assert df.count() == 100
