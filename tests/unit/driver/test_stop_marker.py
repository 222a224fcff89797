"""The watch for a stop marker, on a session whose file system is the test's."""

import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kinesis_efo.driver.graceful import MARKER, watch_marker


def _session(marker: str | None, exists: Callable[[], bool]) -> SparkSession:
    """A session with what the watch uses of it."""
    file_system = SimpleNamespace(exists=lambda _: exists())
    path = SimpleNamespace(getFileSystem=lambda _: file_system)
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=lambda location: path if location == marker else None))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    context = SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: None))
    conf = SimpleNamespace(get=lambda name, default: marker if name == MARKER else default)
    return cast(SparkSession, SimpleNamespace(conf=conf, sparkContext=context))


def test_a_marker_is_found_after_failed_checks(caplog: pytest.LogCaptureFixture) -> None:
    script: list[Any] = [False, Py4JError("S3 said no"), Py4JError("again"), True]
    found = threading.Event()

    def exists() -> bool:
        now = script.pop(0)
        if isinstance(now, Exception):
            raise now
        return bool(now)

    with caplog.at_level(logging.INFO):
        end = watch_marker(_session("s3://b/stops/1", exists), found.set, every=0.001)
        assert found.wait(60)
        end()
    assert script == []
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "cannot check for the stop marker s3://b/stops/1: S3 said no; trying again",
        "found the stop marker s3://b/stops/1",
    ]


def watching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "stop marker"}


def test_without_the_setting_nothing_is_watched() -> None:
    before = watching()
    end = watch_marker(_session(None, lambda: True), lambda: pytest.fail("found"), every=0.001)
    assert not watching() - before
    end()


def test_the_watch_ends_with_the_job() -> None:
    looked, before = threading.Event(), watching()

    def exists() -> bool:
        looked.set()
        return False

    end = watch_marker(_session("s3://b/stops/1", exists), lambda: pytest.fail("found"), every=0.001)
    assert looked.wait(60)
    assert len(watching() - before) == 1
    end()
    assert not watching() - before
