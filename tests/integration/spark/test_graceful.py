"""Ending a real query in good order although the signal hits more than the driver."""

import threading
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo.driver.graceful import wait_for_stop
from tests.integration.spark.conftest import Queries, gateway
from tests.support.world import World

pytestmark = pytest.mark.spark43


def test_a_signal_that_ends_hadoops_program_is_a_stop(
    spark: SparkSession, world: Callable[..., World], queries: Queries
) -> None:
    w = world()
    w.put([("k", b"1")])
    stopping = threading.Event()

    def hit(df: DataFrame, batch: int) -> None:
        java = gateway(spark)
        command = java.new_array(java.jvm.java.lang.String, 3)
        command[:] = ["sh", "-c", "kill -TERM $$"]
        # The query fails before the signal has reached the thread that waits for it.
        threading.Timer(0.5, stopping.set).start()
        java.jvm.org.apache.hadoop.util.Shell.execCommand(command)

    query = queries.start(queries.load(w), hit)
    assert wait_for_stop(query, stopping) is True
