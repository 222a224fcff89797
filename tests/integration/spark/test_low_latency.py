"""`kinesis_efo.low_latency` on real sessions: what it sets works, and what is not safe stays as it is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import kinesis_efo
from kinesis_efo.driver.tuning import DAEMON, MANAGER
from kinesis_efo.errors import ConfigurationError
from tests.integration.spark.conftest import gateway
from tests.support.messages import raises
from tests.support.world import wait_for_rows

pytestmark = pytest.mark.spark43


@pytest.fixture
def default_filesystem(session: SparkSession) -> Iterator[Any]:
    """Hadoop's configuration, whose default file system is restored."""
    hadoop = gateway(session).jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    yield hadoop
    hadoop.set("fs.defaultFS", before)


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_on_local_disks_queries_use_the_fast_manager(session: SparkSession, tmp_path: Path, scheme: str) -> None:
    place = f"{scheme}{tmp_path / 'checkpoint'}"
    done = kinesis_efo.low_latency(session, checkpoint=place)
    assert session.conf.get(MANAGER) == done.settings[MANAGER]
    assert done.at_start == {DAEMON: "kinesis_efo.spark.daemon"}
    assert str(done).splitlines() == [
        f"set: {MANAGER}={done.settings[MANAGER]}", f"give to spark-submit: --conf {DAEMON}=kinesis_efo.spark.daemon"
    ]  # fmt: skip
    assert kinesis_efo.low_latency(session, checkpoint=place) == done, "a second call changes nothing"
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "5").load()
    # With a class that is not there, no query of the session would start.
    query = rows.writeStream.format("noop").option("checkpointLocation", place).start()
    try:
        wait_for_rows(query, 10)
    finally:
        query.stop()
    assert {"0", "1"} <= {path.name for path in (tmp_path / "checkpoint" / "commits").iterdir()}


def test_builder_gives_all_settings_to_its_session() -> None:
    program = """
import sys
from pyspark.sql import SparkSession
import kinesis_efo
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
done = kinesis_efo.low_latency(builder, checkpoint="file:///checkpoints")
spark = builder.getOrCreate()
assert done.settings.keys() == {"spark.python.daemon.module", "spark.sql.streaming.checkpointFileManagerClass"}, done
assert {name: spark.conf.get(name) for name in done.settings} == done.settings
assert kinesis_efo.low_latency(builder, checkpoint="s3://lake").at_start == done.at_start == {}
daemon = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["__main__"].__spec__.name).first()
assert daemon == "kinesis_efo.spark.daemon", daemon
"""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300, env=environment)


def test_builder_of_a_running_session_changes_that_session(session: SparkSession, tmp_path: Path) -> None:
    done = kinesis_efo.low_latency(SparkSession.builder, checkpoint=tmp_path)
    assert done == kinesis_efo.low_latency(session, checkpoint=tmp_path)
    assert DAEMON in done.at_start


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3", "gs", "abfs", "abfss", "wasbs", "oss", "hdfs", "viewfs"])
def test_remote_checkpoints_keep_the_manager(session: SparkSession, scheme: str) -> None:
    before = session.conf.get(MANAGER, None)
    done = kinesis_efo.low_latency(session, checkpoint=f"{scheme}://lake/checkpoints/orders")
    assert session.conf.get(MANAGER, None) == before
    assert done.settings == {}
    assert scheme.lower() in done.left[MANAGER]
    assert done.at_start, "a daemon helps wherever checkpoints are"


def test_the_default_file_system_decides_without_a_scheme(session: SparkSession, default_filesystem: Any) -> None:
    default_filesystem.set("fs.defaultFS", "s3a://lake")
    done = kinesis_efo.low_latency(session, checkpoint="/checkpoints/orders")
    assert done.left == {MANAGER: "it is for local disks, and '/checkpoints/orders' is on s3a"}
    assert str(done).splitlines()[-1].startswith(f"left: {MANAGER}, ")


def test_the_users_manager_stays(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set(MANAGER, "com.example.Manager")
    done = kinesis_efo.low_latency(session, checkpoint=tmp_path)
    assert session.conf.get(MANAGER) == "com.example.Manager"
    assert (done.settings, done.left) == ({}, {MANAGER: "it is com.example.Manager"})


def test_an_empty_checkpoint_is_an_error(session: SparkSession) -> None:
    with raises(
        ConfigurationError,
        "kinesis_efo.low_latency: checkpoint is empty; set the queries' checkpointLocation",
    ):
        kinesis_efo.low_latency(session, checkpoint=" ")
