"""What Terraform's provider needs of services other than Kinesis, and moto alone does not give."""

import http.client
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from kinesis_efo_local import LocalAws, Settings

from .conftest import refused

ACCOUNT, REGION = "111122223333", "eu-west-1"


@pytest.fixture
def aws() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(region=REGION, account_id=ACCOUNT)) as local:
        yield local


def test_assumed_role_acts_in_its_account(aws: LocalAws) -> None:
    sts = aws.client("sts")
    given = sts.assume_role(RoleArn="arn:aws:iam::777788889999:role/reader", RoleSessionName="reader")["Credentials"]
    keys = {"aws_access_key_id": given["AccessKeyId"], "aws_secret_access_key": given["SecretAccessKey"]}
    identity = boto3.client(
        "sts", endpoint_url=aws.endpoint_url, region_name=REGION, aws_session_token=given["SessionToken"], **keys
    ).get_caller_identity()
    assert identity["Account"] == "777788889999"


def test_what_is_json_is_called_json(aws: LocalAws) -> None:
    answer = aws.client("scheduler").create_schedule_group(Name="jobs")
    assert answer["ScheduleGroupArn"].endswith(":schedule-group/jobs")
    assert answer["ResponseMetadata"]["HTTPHeaders"]["content-type"] == "application/json"
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="pages", CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_object(Bucket="pages", Key="page", Body=b"{", ContentType="text/html")
    assert s3.get_object(Bucket="pages", Key="page")["ContentType"] == "text/html", "as it was stored"


def test_s3_control_is_reached_through_the_proxy(aws: LocalAws) -> None:
    """As Terraform's provider reads the tags of a bucket: with the account before the host, a name that nobody resolves."""
    tags = [{"Key": "owner", "Value": "data"}]
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="acme", CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_tagging(Bucket="acme", Tagging={"TagSet": tags})
    url = f"http://{ACCOUNT}.s3-control.local-aws/v20180820/tags/{quote('arn:aws:s3:::acme', safe='')}"
    signed = AWSRequest(method="GET", url=url, headers={"x-amz-account-id": ACCOUNT})
    S3SigV4Auth(Credentials("local", "local"), "s3", REGION).add_auth(signed)
    connection = http.client.HTTPConnection("127.0.0.1", aws.port, timeout=30)
    connection.request("GET", url, headers=dict(signed.headers))
    answer = connection.getresponse()
    assert (answer.status, b"<Key>owner</Key><Value>data</Value>" in answer.read()) == (200, True)
    connection.close()


@pytest.mark.parametrize(
    ("service", "operation", "parameters", "code"),
    [
        ("iam", "list_instance_profile_tags", {"InstanceProfileName": "r"}, "InvalidAction"),
        ("ec2", "describe_address_transfers", {}, "InvalidAction"),
        ("dynamodb", "list_global_tables", {}, "UnknownOperationException"),
        (
            "emr-serverless",
            "get_resource_dashboard",
            {"applicationId": "00f1abcdefgh2025", "resourceId": "1" * 12, "resourceType": "JOB_RUN"},
            "UnknownOperationException",
        ),
        ("cloudwatch", "list_managed_insight_rules", {"ResourceARN": "arn:aws:x:::y"}, "UnknownOperationException"),
    ],
)
def test_unknown_operation_is_refused_and_logged(
    aws: LocalAws, caplog: pytest.LogCaptureFixture, service: str, operation: str, parameters: dict[str, Any], code: str
) -> None:
    client = aws.client(service)
    with caplog.at_level(logging.WARNING), refused(code, "does not know the operation"):
        getattr(client, operation)(**parameters)
    (line,) = [each for each in caplog.messages if "does not know the operation" in each]
    assert "Traceback" not in caplog.text
    assert "\n" not in line
