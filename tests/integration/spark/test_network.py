"""Where the process that Spark keeps for a reader listens, on real Spark, and that its tasks find it there."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address

import psutil
import pytest
from pyspark.sql.streaming import python_streaming_source_runner as runner

import kinesis_efo
from kinesis_efo.spark.jvm import spark_jvm
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_for_rows

MakeWorld = Callable[..., World]


def readers() -> list[psutil.Process]:
    """The processes that Spark keeps for readers."""
    found = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        # Some have ended, and nobody has waited for them.
        with contextlib.suppress(psutil.NoSuchProcess):
            if runner.__name__ in process.cmdline():
                found.append(process)
    return found


def listening() -> set[str]:
    """The addresses on which they listen."""
    sockets = [each for process in readers() for each in process.net_connections("tcp")]
    return {each.laddr.ip.removeprefix("::ffff:") for each in sockets if each.status == psutil.CONN_LISTEN}


@pytest.mark.spark
def test_in_local_mode_nothing_but_loopback_is_bound(queries: Queries, world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put((f"k{n}", b"data") for n in range(100))
    wait_for_rows(queries.start(queries.load(w), "local"), 100)
    assert listening() == {"127.0.0.1"}
    assert [spark_jvm(process.pid, {}).local for process in readers()] == [True], "seen by what the JVM does"


@pytest.mark.spark40
def test_read_stream_in_local_mode_binds_nothing_else_either(queries: Queries, world: MakeWorld) -> None:
    w = world({"orders": 1})
    w.put((f"k{n}", b"data") for n in range(10))
    rows = kinesis_efo.read_stream(queries.spark, **{**w.options, "startingPosition": "TRIM_HORIZON"})
    query = queries.start(rows, "facade")
    wait_for_rows(query, 10)
    assert listening() == {"127.0.0.1"}


@pytest.mark.spark40
def test_tasks_read_over_tls_where_every_address_is_served(queries: Queries, world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put((f"k{n}", b"data") for n in range(100))
    wait_for_rows(queries.start(queries.load(w, fetcherBindHost="0.0.0.0"), "every"), 100)
    assert [ip_address(each).is_unspecified for each in listening()] == [True]


@pytest.mark.spark43
def test_a_port_that_is_taken_is_an_error_that_says_so(queries: Queries, world: MakeWorld) -> None:
    w = world({"orders": 1})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        query = queries.start(queries.load(w, fetcherPort=str(port)), "taken")
        with pytest.raises(Exception, match=rf"cannot listen on 127\.0\.0\.1, port {port}: .*Address already in use"):
            query.awaitTermination(60)
