"""Queries whose Python workers come from another daemon than Spark's, or are not used again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.conftest import Queries, gateway
from tests.support.own_daemon import log_of
from tests.support.world import World, wait_for_rows, wait_until

DAEMON = "spark.python.daemon.module"
OURS = "kinesis_efo.spark.daemon"
USERS = "tests.support.own_daemon"


@contextmanager
def started_with(spark: SparkSession, setting: str, value: str) -> Iterator[None]:
    """The session, as if it had been started with a setting: a session has no way to change it."""
    # The session copies what is set when it is first used, and would keep it.
    assert spark.conf.get(setting, None) is None
    java = gateway(spark).jvm
    environment = java.org.apache.spark.SparkContext.getOrCreate().env()
    # A field: methods of 4.3 have types that py4j cannot load.
    field = java.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("conf")
    field.setAccessible(True)
    conf = field.get(environment)
    conf.set(setting, value)
    try:
        yield
    finally:
        conf.remove(setting)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        pytest.param(DAEMON, OURS, marks=pytest.mark.spark, id="our daemon"),
        pytest.param(DAEMON, USERS, marks=pytest.mark.spark43, id="a user's daemon"),
    ],
)
def test_every_record_is_read_by_workers_of_any_daemon(
    spark: SparkSession, world: Callable[..., World], queries: Queries, setting: str, value: str
) -> None:
    w = world()
    w.put([(f"k{number}", b"%08d" % number) for number in range(50)])
    with started_with(spark, setting, value):
        query = queries.start(queries.load(w), value.replace(".", "_"))
        wait_for_rows(query, 50)
        rows = spark.table(query.name).collect()
        assert sorted(int(row["data"]) for row in rows) == list(range(50))
        assert setting != DAEMON or any(value in command for command in commands(spark))
    if value == USERS:
        log = log_of(jvm(spark))
        # A worker collects garbage once its task has ended.
        counts = wait_until(lambda: log.exists() and log.read_text().split(), what="the end of a task")
        log.unlink()
        assert min(map(int, counts)) > 10_000, "modules are left alone from the first task on"


def jvm(spark: SparkSession) -> int:
    """The number of the session's JVM."""
    return int(gateway(spark).jvm.java.lang.ProcessHandle.current().pid())


def commands(spark: SparkSession) -> Iterator[list[str]]:
    """The command lines of what the session's JVM has started."""
    for process in psutil.Process(jvm(spark)).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield process.cmdline()
