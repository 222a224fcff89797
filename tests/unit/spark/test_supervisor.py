"""One supervisor for all DataFrames of a session, and nothing left of it when Spark is stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.spark import supervisor as module
from kinesis_efo.spark.supervisor import check_cores, supervisor_of
from tests.support.world import wait_until


class Context:
    """Spark's context, as far as supervisors ask it."""

    master = "yarn"
    stopped = False

    @property
    def defaultParallelism(self) -> int:
        if self.stopped:
            raise AttributeError("'NoneType' object has no attribute 'sc'")  # as PySpark's
        return 8


class Session:
    def __init__(self, context: Context) -> None:
        self.sparkContext = context


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.05)
    context = Context()
    yield context
    context.stopped = True
    wait_until(lambda: not threads(), 60, "the end of all supervisors")


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kinesis-efo supervisor"]


def path_for(session: Any, fetchers: int = 2) -> Path:
    return Path(supervisor_of(session, fetchers).path)


def test_all_dataframes_of_a_session_share_one(context: Context) -> None:
    session = Session(context)
    paths = {path_for(session, fetchers) for fetchers in range(1, 21)}
    assert len(paths) == len(threads()) == 1
    assert path_for(Session(context)) in paths, "another session of the same Spark"
    assert next(iter(paths)).is_socket()


def test_nothing_is_left_when_spark_is_stopped_and_the_next_one_has_its_own(context: Context) -> None:
    before = path_for(Session(context))
    other = Context()
    after = path_for(Session(other))
    assert after != before
    context.stopped = True
    wait_until(lambda: not before.parent.exists() and len(threads()) == 1, 60, "the end of the first supervisor")
    assert after.is_socket()
    other.stopped = True
    wait_until(lambda: not after.parent.exists() and not threads(), 60, "the end of the second supervisor")


def test_so_many_that_no_core_is_left_are_refused_each_time(context: Context) -> None:
    context.master = "local[8]"
    path_for(Session(context), 7)
    with pytest.raises(ConfigurationError, match="option 'fetchers' is 8, but Spark has 8 cores"):
        path_for(Session(context), 8)


@pytest.mark.parametrize(
    ("master", "fetchers", "here"),
    [
        ("local[4]", 3, 1),
        ("local[*]", 7, 8),
        ("local-cluster[2,1,1024]", 9, 1),
        ("yarn", 9, 1),
        ("", 9, 1),
    ],
)
def test_where_cores_are_left_or_a_cluster_may_grow(master: str, fetchers: int, here: int) -> None:
    check_cores(master, fetchers, here)


@pytest.mark.parametrize(
    ("master", "fetchers", "here", "cores"),
    [("local", 1, 8, 1), ("local[4]", 4, 8, 4), ("local[4, 2]", 5, 8, 4), ("local[*]", 8, 8, 8)],
)
def test_where_none_is_left(master: str, fetchers: int, here: int, cores: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_cores(master, fetchers, here)
    assert f"option 'fetchers' is {fetchers}, but Spark has {cores} cores with master {master}: " in str(caught.value)
