"""What the infrastructure wrote about a job, and what is said when it is not there or not understood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber

from kinesis_efo.errors import ConfigurationError, UsageError
from kinesis_efo_tools.emr.deployment import load_deployment
from kinesis_efo_tools.emr.target import Target
from tests.support.messages import raises

DOCUMENT = {
    "schemaVersion": 1, "application": "lake", "environment": "dev", "region": "eu-west-1", "artifacts": "s3://artifacts",
    "manifest": "ssm:///kinesis-efo/dev/lake", "releaseLabel": "emr-spark-8.0.0", "architecture": "arm64", "python": "3.11",
}  # fmt: skip


class Ssm:
    def __init__(self) -> None:
        session = botocore.session.Session()
        self.client: Any = session.create_client("ssm", "eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
        self.stubber = Stubber(self.client)
        self.stubber.activate()

    def holds(self, value: str) -> None:
        asked = {"Name": "/kinesis-efo/dev/lake/job", "WithDecryption": True}
        self.stubber.add_response("get_parameter", {"Parameter": {"Value": value}}, asked)


@pytest.fixture
def ssm() -> Iterator[Ssm]:
    held = Ssm()
    yield held
    held.stubber.assert_no_pending_responses()
    held.client.close()


def test_missing_keys_have_defaults_and_unknown_are_ignored(ssm: Ssm) -> None:
    ssm.holds(json.dumps({**DOCUMENT, "later": {"a": 1}}))
    found = load_deployment("dev", "lake", ssm.client)
    assert (found.target, found.role_arn, found.program, found.arguments, found.spark) == (None, None, None, (), {})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "parameter ... is not a description of a job: Input data was truncated; deploy the infrastructure again"),
        (
            json.dumps({**DOCUMENT, "arguments": "--output"}),
            "parameter ...: Expected `array`, got `str` - at `$.arguments`; ...",
        ),
        (
            json.dumps({name: DOCUMENT[name] for name in DOCUMENT if name != "artifacts"}),
            "parameter ...: Object missing required field `artifacts`; ...",
        ),
        (
            json.dumps({**DOCUMENT, "schemaVersion": 2}),
            (
                "parameter /kinesis-efo/dev/lake/job has schemaVersion 2; this version of kinesis-efo reads 1. "
                "Deploy the infrastructure and submit with the same release"
            ),
        ),
    ],
)
def test_wrong_document_is_refused(ssm: Ssm, value: str, said: str) -> None:
    ssm.holds(value)
    with raises(ConfigurationError, said):
        load_deployment("dev", "lake", ssm.client)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "ParameterNotFound",
            (
                "there is no parameter /kinesis-efo/dev/lake/job in eu-west-1: does the environment file of 'dev' have 'emr' "
                "and an application 'lake', and was it deployed, to this account and region? Or give --target, --manifest and "
                "--artifacts"
            ),
        ),
        (
            "AccessDeniedException",
            (
                "parameter /kinesis-efo/dev/lake/job cannot be read: An error occurred (AccessDeniedException) when calling the "
                "GetParameter operation: "
            ),
        ),
    ],
)
def test_unreadable_document_is_named(ssm: Ssm, code: str, said: str) -> None:
    ssm.stubber.add_client_error("get_parameter", code)
    with raises(ConfigurationError, said):
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
