"""A fetcher as a Spark task, in local mode: it comes with its query, goes with it, and is started again when it dies."""

import os
from collections.abc import Callable

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.conftest import Queries, Rows
from tests.support.arriving import numbered
from tests.support.world import World, wait_until

pytestmark = [pytest.mark.spark40, pytest.mark.slow]
MakeWorld = Callable[..., World]


def jobs(spark: SparkSession) -> list[int]:
    """The jobs that run at this moment."""
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def fetchers() -> list[psutil.Process]:
    """The processes of fetchers: workers forked by Spark's Python daemon that listen."""

    def is_one(process: psutil.Process) -> bool:
        try:
            above = process.parent()
            forked = above is not None and "pyspark.daemon" in above.cmdline()
            return forked and any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp"))
        except psutil.Error:
            return False

    return [process for process in psutil.Process(os.getpid()).children(recursive=True) if is_one(process)]


@pytest.fixture(autouse=True)
def alone(spark: SparkSession) -> None:
    """Wait until what tests before have stopped has ended: jobs and fetchers of others would count here."""
    wait_until(lambda: not fetchers() and not jobs(spark), 30, "the end of other tests' fetchers and jobs")


def test_a_fetcher_comes_and_goes_with_its_query(spark: SparkSession, queries: Queries, world: MakeWorld) -> None:
    w, rows = world({"orders": 3}), Rows()
    w.put(numbered(100))
    df = queries.read_stream(w, fetchers=1)
    assert jobs(spark) == [], "nothing runs before the query does"
    for run in range(2):
        query = queries.start(df, rows)
        rows.wait_for(query, 100 * (run + 1))
        wait_until(lambda: jobs(spark), 30, "the fetcher's job, as Spark's UI shows it")
        wait_until(lambda: len(fetchers()) == 1, 30)
        w.put(numbered(100, first=100 * (run + 1)))
        rows.wait_for(query, 100 * (run + 2), 60)
        query.stop()
        wait_until(lambda: not fetchers() and not jobs(spark), 30, "the end of the fetcher and its job")
        wait_until(lambda: not [row for row in w.leases().values() if "leaseOwner" in row], 30, "released leases")
    assert sorted(rows.numbers) == list(range(300))
