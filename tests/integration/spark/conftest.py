"""One Spark session and one local AWS for all tests that need them; every test has streams of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from kinesis_efo.local import LocalAws, Settings
from tests.support.world import World, make_world

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


@pytest.fixture(scope="session")
def local_aws() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(consumer_creating_seconds=0.0, idle_event_seconds=0.5)) as aws:
        yield aws


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # The processes that Spark starts for a reader inherit the environment of the JVM.
    os.environ.update(CREDENTIALS, PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("kinesis-efo tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def world(local_aws: LocalAws, tmp_path: Path) -> Callable[..., World]:
    """Makes a world; arguments as `make_world`."""

    def make(streams: Any = ("orders",), **create: Any) -> World:
        return make_world(local_aws, tmp_path, streams, **create)

    return make


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark and py4j leave the sockets to the JVM to the garbage collector; ours are watched by the other tests."""
    for item in items:
        if item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
                )
            )
