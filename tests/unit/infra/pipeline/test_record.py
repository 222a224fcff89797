"""The record of what is deployed: written by one deployment at a time."""

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from infra.errors import PipelineError
from infra.pipeline.deployments import deployment_of
from kinesis_efo_infra.pipeline.record import Deployed, Records
from tests.unit.infra.conftest import Load

KEY = "kinesis-efo/test.deployed.json"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="state")
        yield client


def test_two_deployments_at_once_do_not_overwrite_each_other(s3: Any, load: Load) -> None:
    environment, one, two = deployment_of(load()), Records(s3), Records(s3)
    one.load(environment)
    two.load(environment)
    one.save(environment, Deployed("one"))
    with pytest.raises(PipelineError, match=f"another deployment of test wrote s3://state/{KEY}"):
        two.save(environment, Deployed("two"))
    two.load(environment)
    one.save(environment, Deployed("three"))
    with pytest.raises(PipelineError, match="another deployment of test"):
        two.save(environment, Deployed("four"))
    assert Records(s3).load(environment).commit == "three"


def test_another_document_is_an_error(s3: Any, load: Load) -> None:
    for body in (b"", b"[]", b"1", b'{"commit": "c0ffee", "what": 1}'):
        s3.put_object(Bucket="state", Key=KEY, Body=body)
        with pytest.raises(PipelineError, match="is no record of a deployment"):
            Records(s3).load(deployment_of(load()))


def test_record_is_marked_until_a_deployment_succeeds(s3: Any, load: Load) -> None:
    environment, records = deployment_of(load()), Records(s3)
    assert records.load(environment) == Deployed(), "before the first time"
    records.save(environment, Deployed("one", "digest", under_way="two"))
    assert Records(s3).load(environment) == Deployed("one", "digest", under_way="two")
    records.save(environment, Deployed("two", "other"))
    # Versions that know no mark read it; one with a mark they refuse, as they cannot tell what it left.
    assert json.loads(s3.get_object(Bucket="state", Key=KEY)["Body"].read()) == {"commit": "two", "stack": "other"}


@pytest.mark.parametrize("refused", ["get_object", "put_object"])
def test_missing_key_names_the_remedy(refused: str, s3: Any, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "any")

    monkeypatch.setattr(s3, refused, refuse)
    by = r"s3://state/kinesis-efo/test\.hmac-key, the key by which .*AccessDenied.*; run `make bootstrap ENV=test`, which"
    with pytest.raises(PipelineError, match=by):
        Records(s3).key(deployment_of(load()))
