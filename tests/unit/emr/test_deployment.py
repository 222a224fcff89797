"""What the infrastructure wrote about a job, and what is said when it is not there or not understood."""

import json

import botocore.session
import pytest
from botocore.stub import Stubber

from kinesis_efo.errors import ConfigurationError, PlatformError, UsageError
from kinesis_efo_tools.emr.deployment import load_deployment
from kinesis_efo_tools.emr.schedules import Schedule, Schedules
from kinesis_efo_tools.emr.target import Target
from tests.support.messages import raises

DOCUMENT = {
    "schemaVersion": 1, "application": "lake", "environment": "dev", "region": "eu-west-1", "artifacts": "s3://artifacts",
    "manifest": "ssm:///kinesis-efo/dev/lake", "releaseLabel": "emr-spark-8.0.0", "architecture": "arm64", "python": "3.11",
}  # fmt: skip


def stubbed(service: str) -> Stubber:
    """A client whose answers a test gives."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    stubber = Stubber(botocore.session.Session().create_client(service, "eu-west-1", **keys))
    stubber.activate()
    return stubber


@pytest.fixture
def ssm() -> Stubber:
    return stubbed("ssm")


def holds(ssm: Stubber, value: str) -> None:
    asked = {"Name": "/kinesis-efo/dev/lake/job", "WithDecryption": True}
    ssm.add_response("get_parameter", {"Parameter": {"Value": value}}, asked)


def test_missing_keys_have_defaults_and_unknown_are_ignored(ssm: Stubber) -> None:
    holds(ssm, json.dumps({**DOCUMENT, "later": {"a": 1}}))
    found = load_deployment("dev", "lake", ssm.client)
    assert (found.target, found.role_arn, found.program, found.arguments, found.spark) == (None, None, None, (), {})


def test_wrong_document_is_refused(ssm: Stubber) -> None:
    for value, said in (
        ("{", "parameter ... is not a description of a job: Input data was truncated; deploy the infrastructure again"),
        (
            json.dumps({**DOCUMENT, "arguments": "--output"}),
            "parameter ...: Expected `array`, got `str` - at `$.arguments`; ...",
        ),
        (
            json.dumps({**DOCUMENT, "artifacts": None}),
            "parameter ...: Expected `str`, got `null` - at `$.artifacts`; ...",
        ),
    ):
        holds(ssm, value)
        with raises(ConfigurationError, said):
            load_deployment("dev", "lake", ssm.client)
    holds(ssm, json.dumps({**DOCUMENT, "schemaVersion": 2}))
    with raises(
        ConfigurationError,
        "parameter /kinesis-efo/dev/lake/job has schemaVersion 2; this version of kinesis-efo reads 1. Deploy the infrastructure "
        "and submit with the same release",
    ):
        load_deployment("dev", "lake", ssm.client)


def test_unreadable_document_is_named(ssm: Stubber) -> None:
    ssm.add_client_error("get_parameter", "ParameterNotFound")
    with raises(
        ConfigurationError,
        "there is no parameter /kinesis-efo/dev/lake/job in eu-west-1: does the environment file of 'dev' have 'emr' and an "
        "application 'lake', and was it deployed, to this account and region? Or give --target, --manifest and --artifacts",
    ):
        load_deployment("dev", "lake", ssm.client)
    ssm.add_client_error("get_parameter", "AccessDeniedException")
    with raises(
        ConfigurationError,
        "parameter /kinesis-efo/dev/lake/job cannot be read: An error occurred (AccessDeniedException) when calling the "
        "GetParameter operation: ",
    ):
        load_deployment("dev", "lake", ssm.client)


@pytest.mark.parametrize(
    "text", ["", "j-2AXXXXXXGAPLF", "cluster:", "cluster:2AXX", "spark:local", "eks:a b", "serverless:ABC"]
)
def test_target_is_read_or_refused(text: str) -> None:
    for right in ("cluster:j-2AXXXXXXGAPLF", "serverless:00f1abcdefgh2025", "eks:7jw6bqt9k1"):
        assert str(Target.parse(right)) == right
    said = f"--target must be cluster:j-<id>, serverless:<application id>, eks:<virtual cluster id> or glue:<job>; got {text!r}"
    with raises(UsageError, said):
        Target.parse(text)


ROLE = "arn:aws-cn:iam::111122223333:role/schedules"
SCHEDULE = Schedule("test", "lake", "rate(1 hour)", "UTC", ROLE)


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("ResourceNotFoundException", "deploy the infrastructure, which declares the group"),
        ("AccessDeniedException", "iam:PassRole for the role of schedules"),
        ("ConflictException", "ConflictException"),
    ],
)
def test_schedule_that_cannot_be_set_has_a_hint(code: str, hint: str) -> None:
    stub = stubbed("scheduler")
    stub.add_client_error("get_schedule", "ResourceNotFoundException", "no schedule")
    stub.add_client_error("create_schedule", code, "no")
    with pytest.raises(PlatformError, match=rf"^cannot set schedule lake in group test: .*{hint}"):
        Schedules(stub.client).put(SCHEDULE, {})


def test_schedule_that_cannot_be_read_stays() -> None:
    stub = stubbed("scheduler")
    stub.add_client_error("get_schedule", "AccessDeniedException", "no")
    with raises(
        PlatformError,
        "cannot delete schedule lake in group test: An error occurred (AccessDeniedException) when calling the GetSchedule "
        "operation: no; the caller needs the permission that AWS names, and iam:PassRole for the role of schedules",
    ):
        Schedules(stub.client).remove("test", "lake")
