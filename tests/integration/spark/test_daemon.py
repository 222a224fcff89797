"""A query whose workers come from a daemon that has loaded their imports beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_for_rows

pytestmark = pytest.mark.spark40
SETTING = "spark.python.daemon.module"
DAEMON = "kinesis_efo.spark.daemon"


@pytest.fixture
def preloading(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, as if it had been started with the setting: a session has no way to change it."""
    # The session copies what is set when it is first used, and would keep it.
    assert spark.conf.get(SETTING, None) is None
    jvm: Any = spark.sparkContext._jvm
    environment: Any = spark.sparkContext._jsc.sc().env()
    # A field: methods of 4.3 have types that py4j cannot load.
    field = jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("conf")
    field.setAccessible(True)
    conf = field.get(environment)
    conf.set(SETTING, DAEMON)
    yield spark
    conf.remove(SETTING)
    assert spark.conf.get(SETTING, None) is None


def test_workers_are_forked_from_the_preloaded_daemon(
    preloading: SparkSession, world: Callable[..., World], queries: Queries
) -> None:
    w = world()
    w.put([(f"k{number}", b"%08d" % number) for number in range(50)])
    query = queries.start(queries.load(w), "forked")
    wait_for_rows(query, 50)
    rows = preloading.table(query.name).collect()
    assert sorted(int(row["data"]) for row in rows) == list(range(50))
    assert any(DAEMON in command for command in commands(preloading))


def commands(spark: SparkSession) -> Iterator[list[str]]:
    """The command lines of what the session's JVM has started."""
    jvm: Any = spark.sparkContext._jvm
    for process in psutil.Process(jvm.java.lang.ProcessHandle.current().pid()).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield process.cmdline()
