"""Where the process that Spark keeps for a reader listens, on real Spark, and that its tasks find it there."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address

import psutil
import pytest
from pyspark.sql.streaming import python_streaming_source_runner as runner

from kinesis_efo.planner.host import spark_jvm
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_for_rows

MakeWorld = Callable[..., World]


def listening(process: psutil.Process) -> set[str]:
    """The addresses on which a process listens."""
    sockets = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return {each.laddr.ip.removeprefix("::ffff:") for each in sockets}


@pytest.mark.spark43
def test_local_mode_binds_only_loopback(queries: Queries, world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put((f"k{n}", b"data") for n in range(100))
    wait_for_rows(queries.start(queries.load(w), "local"), 100)
    run = w.reader()
    planner = run.parent()
    assert runner.__name__ in planner.cmdline(), "the process that Spark keeps for the source"
    assert listening(run) == listening(planner) == {"127.0.0.1"}
    assert spark_jvm(planner.pid, {}).local, "seen by what the JVM does"


@pytest.mark.spark40
def test_tasks_read_over_tls_from_every_address(queries: Queries, world: MakeWorld) -> None:
    w = world({"orders": 2})
    w.put((f"k{n}", b"data") for n in range(100))
    wait_for_rows(queries.start(queries.load(w, fetcherHost=socket.gethostname()), "every"), 100)
    assert [ip_address(each).is_unspecified for each in listening(w.reader())] == [True]
