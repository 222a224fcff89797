"""Where applications write: what their policies allow, evaluated as IAM does, and what their files must not say."""

from __future__ import annotations

import json

import pytest

from infra.settings.literals import literal_deployment, literal_policy
from infra.settings.model import Environment
from infra.settings.names import Names
from kinesis_efo_infra import ArgumentError, iam
from kinesis_efo_infra.locations import Location
from tests.support.iam import Statement, allowed
from tests.unit.infra.conftest import Load, policy

KEY = "arn:aws:kms:eu-west-1:111122223333:key/lake"
LAKE = "arn:aws:s3:::lake"


@pytest.fixture
def writing(load: Load) -> Environment:
    """An environment with a pipeline, and an application that says where it writes."""
    return load("OURS, PIPELINE")


def limits(environment: Environment) -> list[list[Statement]]:
    """The application's policy, and its boundary: AWS allows what both do."""
    own = json.loads(literal_policy(environment, "lake").json())["Statement"]
    return [own, policy(environment, "boundary")]


def may(environment: Environment, action: str, resource: str, **context: str) -> bool:
    return all(allowed(each, action, resource, {"s3:prefix": "", **context}) for each in limits(environment))


@pytest.mark.parametrize("bucket_and_prefix", ["lake/raw", "state-of-lake/a/b"])
def test_application_uses_objects_below_its_locations(bucket_and_prefix: str, writing: Environment) -> None:
    bucket, _, prefix = bucket_and_prefix.partition("/")
    arn = f"arn:aws:s3:::{bucket}"
    for key in (prefix, f"{prefix}/", f"{prefix}/date=2026/part-0.parquet"):
        for action in iam.USE_OBJECTS:
            assert may(writing, action, f"{arn}/{key}"), (action, key)
        assert may(writing, "s3:ListBucket", arn, **{"s3:prefix": key})
    for action in iam.FIND_UPLOADS:
        assert may(writing, action, arn)


@pytest.mark.parametrize("key", ["", "other/x", "raw-2/x", "rawx", "a", "a/b/x", "x/raw/y"])
def test_application_uses_nothing_else(key: str, writing: Environment) -> None:
    for action in iam.USE_OBJECTS:
        assert not may(writing, action, f"{LAKE}/{key}"), action
    assert not may(writing, "s3:ListBucket", LAKE, **{"s3:prefix": key})
    assert not may(writing, "s3:DeleteBucket", LAKE)
    assert not may(writing, "s3:ListBucket", f"{LAKE}-2", **{"s3:prefix": "raw/"})


def test_request_without_prefix_lists_nothing(writing: Environment) -> None:
    assert not allowed(limits(writing)[0], "s3:ListBucket", LAKE, {})


def test_the_key_is_used_through_s3_only(writing: Environment) -> None:
    via = {"kms:ViaService": "s3.eu-west-1.amazonaws.com"}
    for action in ("kms:Decrypt", "kms:GenerateDataKey"):
        assert may(writing, action, KEY, **via)
        assert not may(writing, action, KEY)
        assert not may(writing, action, KEY, **{"kms:ViaService": "ssm.eu-west-1.amazonaws.com"})
        assert not may(writing, action, f"{KEY}-2", **via)


def test_without_locations_an_application_writes_nowhere(load: Load) -> None:
    text = literal_policy(load(), "lake").json()
    assert "s3:" not in text


def test_a_jobs_arguments_refer_to_the_locations(writing: Environment) -> None:
    arguments = json.loads(literal_deployment(writing, "lake"))["arguments"]
    assert arguments == ["--output=s3://lake/raw/x", "--checkpoint", "s3://state-of-lake/a/b", "$outputs", "a$b"]
    assert json.loads(literal_deployment(writing, "lake"))["spark"] == {
        "spark.sql.warehouse.dir": "s3://lake/raw/tables"
    }
    assert set(Names(writing).job_buckets) == {"kinesis-efo-test-111122223333", "lake", "state-of-lake"}


@pytest.mark.parametrize(
    "uri",
    [
        "", "s3://", "s3://b/", "s3://b//x", "s3://B/x", "s3://bucket/x y", "s3://bucket/.", "s3://lake", "s3://lake/raw/",
        "s3://lake/*", "s3://lake/${aws:username}", "s3://lake/a/../b", "s3a://lake/raw",
    ],
)  # fmt: skip
def test_what_is_no_location_is_refused(uri: str) -> None:
    with pytest.raises(ArgumentError, match="a location must be s3://bucket/prefix"):
        Location.parse(uri)
