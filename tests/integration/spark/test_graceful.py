"""Ending a real query in good order although the signal hits more than the driver."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo.driver.graceful import wait_for_stop
from tests.integration.spark.conftest import Queries, gateway
from tests.support.world import World, wait_until

pytestmark = pytest.mark.spark43

BLOCKED = """
import time
from pyspark.sql import SparkSession
from kinesis_efo import job

with job(SparkSession.builder.appName("orders").master("local[1]")) as spark:
    rows = spark.readStream.format("rate").load().writeStream
    rows.foreachBatch(lambda *_: (print("blocked", flush=True), time.sleep(600))).start().awaitTermination()
"""


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


@pytest.mark.long
def test_second_ctrl_c_ends_a_job_with_blocked_sink(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w+") as stderr:
        program = subprocess.Popen(
            [sys.executable, "-c", BLOCKED], stdout=subprocess.PIPE, stderr=stderr, start_new_session=True, cwd=tmp_path
        )
        with program:
            assert program.stdout is not None
            try:
                assert program.stdout.readline() == b"blocked\n"
                stderr.seek(0, os.SEEK_END)
                before = stderr.tell()
                os.killpg(program.pid, signal.SIGINT)
                wait_until(lambda: "cuts it short\n" in (tmp_path / "stderr").read_text(), 60)
                os.killpg(program.pid, signal.SIGINT)
                # Reads until the JVM has ended, too.
                assert program.stdout.read() == b""
                assert program.wait(60) == 130
            finally:
                program.kill()
        stderr.seek(before)
        announced = "stopping after the micro-batch, in up to 600 s; Ctrl-C again cuts it short"
        assert stderr.read() == f"{announced}\n\norders was interrupted\n"
