"""A windowed count over backlogs of very different sizes: what Spark's watermark drops, and that `maxShardSkew` keeps it."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import max as newest_of
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.functions import window

from tests.integration.spark.conftest import Queries
from tests.support.backlog import backlog
from tests.support.world import World, wait_for_rows

pytestmark = pytest.mark.spark40

SIZES = (1, 1, 2, 3, 5, 8, 20, 40)


def test_max_shard_skew_keeps_late_rows(queries: Queries, world: Callable[..., World], spark: SparkSession) -> None:
    w = world({"orders": len(SIZES)})
    puts = backlog(w, SIZES)
    counted, dropped = count(queries, w, puts, "apart")
    assert dropped > 0 and counted < puts
    assert count(queries, w, puts, "together", maxShardSkew="30s") == (puts, 0)


def count(queries: Queries, w: World, puts: int, name: str, **options: str) -> tuple[int, int]:
    """Count the rows of each half minute, with a watermark of a minute.

    Returns:
        The rows that were counted, and how many Spark dropped, after it has counted those of one micro-batch and window together.
    """
    windows = (
        queries.load(w, maxRecordsPerTrigger="800", **options)
        .withWatermark("approximateArrivalTimestamp", "1 minute")
        .groupBy(window("approximateArrivalTimestamp", "30 seconds"))
        .count()
    )
    query = queries.start(windows, name, mode="update")
    wait_for_rows(query, puts)
    dropped = sum(each["stateOperators"][0]["numRowsDroppedByWatermark"] for each in query.recentProgress)
    query.stop()
    newest = queries.spark.table(query.name).groupBy("window").agg(newest_of("count").alias("count"))
    return newest.agg(sum_of("count")).head()[0], dropped
