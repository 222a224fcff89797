"""The fixtures that pytest finds when kinesis-efo is installed, in a project of somebody's own."""

import sys
from pathlib import Path

import pytest

from tests.support.commands import outcome

PROJECT = """
import json, os
import pytest
import boto3
from kinesis_efo import ManifestError

KEPT = dict(os.environ)


@pytest.fixture(scope="session")
def needs_the_environment():
    return os.environ.get("AWS_ENDPOINT_URL")


def test_one_stream_without_a_marker(needs_the_environment, kinesis_efo_streams):
    assert needs_the_environment == kinesis_efo_streams.aws.endpoint_url
    assert os.environ["PYSPARK_PYTHON"]
    assert kinesis_efo_streams.put("orders", [{"id": 1}, "text", b"bytes", ("k", {"id": 2})]) == 4
    document = json.load(open(kinesis_efo_streams.manifest))
    assert (document["application"], list(document["streams"])) == ("lake", ["orders"])


@pytest.mark.kinesis(streams={"orders": 2, "clicks": 1}, application="shop")
def test_former_names_work_with_a_warning(kinesis, local_aws):
    assert kinesis.aws is local_aws
    client = boto3.client("kinesis")
    assert client.list_streams()["StreamNames"] == sorted(kinesis.streams.values()), "those of other tests are gone"
    shards = {name: len(client.list_shards(StreamName=real)["Shards"]) for name, real in kinesis.streams.items()}
    assert shards == {"orders": 2, "clicks": 1}
    kinesis.put("clicks", [b"1"] * 1200)
    (shard,) = client.list_shards(StreamName=kinesis.streams["clicks"])["Shards"]
    iterator = client.get_shard_iterator(
        StreamName=kinesis.streams["clicks"], ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )
    assert len(client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]) == 1200


@pytest.mark.kinesis_efo(stream="orders")
def test_a_misspelled_argument(kinesis_efo_streams):
    pass
"""
QUIET = """
import sys


def test_nothing_is_imported_for_tests_that_do_not_ask():
    assert not {"moto", "aiohttp", "botocore", "pyspark"} & set(sys.modules)
"""


def run(project: Path, text: str) -> str:
    (project / "test_project.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", str(project), "--strict-markers", "-q"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest"]
    return outcome([*command, *plugins], cwd=project).stdout


def test_each_test_gets_streams_and_a_manifest(tmp_path: Path) -> None:
    said = run(tmp_path, PROJECT)
    assert "2 passed, 2 warnings, 1 error" in said, said
    assert "@pytest.mark.kinesis_efo has no argument 'stream': it takes streams and application" in said


def test_a_project_without_such_tests_pays_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, QUIET)
    assert "1 passed" in said, said


def test_fixtures_of_another_project_stay_in_order(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
import pytest

order = []


@pytest.fixture(scope="session", autouse=True)
def environment():
    order.append("environment")


@pytest.fixture
def local_aws():
    order.append("local_aws")


def test_first(local_aws):
    assert order == ["environment", "local_aws"]
""",
    )
    assert "1 passed" in said, said


@pytest.mark.long
@pytest.mark.spark43
def test_spark_without_the_local_aws_is_warned_of(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def spark():
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


def test_first():
    pass


def test_second(kinesis_efo_streams):
    pass
""",
    )
    assert "1 passed, 1 error" in said, said
    assert "let the fixture that starts it ask for `kinesis_efo_local_aws`" in said
