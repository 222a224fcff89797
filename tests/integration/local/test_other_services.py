"""What Terraform's provider needs of services other than Kinesis, and moto alone does not give."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from kinesis_efo.local import LocalAws, Settings

ACCOUNT, REGION = "111122223333", "eu-west-1"
SPARK = {"name": "jobs", "releaseLabel": "emr-spark-8.0.0", "type": "spark", "clientToken": "once"}


@pytest.fixture
def aws() -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(region=REGION, account_id=ACCOUNT)) as local:
        yield local


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    with pytest.raises(ClientError) as refused:
        call()
    response: dict[str, Any] = refused.value.response
    return response


def test_every_service_is_in_the_account_of_kinesis(aws: LocalAws) -> None:
    assert aws.client("sts").get_caller_identity()["Account"] == ACCOUNT
    table = aws.client("dynamodb").create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )["TableDescription"]["TableArn"]
    assert table == f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/leases"


def test_a_role_that_was_assumed_acts_in_its_own_account(aws: LocalAws) -> None:
    sts = aws.client("sts")
    given = sts.assume_role(RoleArn="arn:aws:iam::777788889999:role/reader", RoleSessionName="reader")["Credentials"]
    keys = {"aws_access_key_id": given["AccessKeyId"], "aws_secret_access_key": given["SecretAccessKey"]}
    identity = boto3.client(
        "sts",
        endpoint_url=aws.endpoint_url,
        region_name=REGION,
        aws_session_token=given["SessionToken"],
        **keys,
    ).get_caller_identity()
    assert identity["Account"] == "777788889999"


def test_what_the_provider_sets_is_read_back(aws: LocalAws) -> None:
    """A second plan is empty only if it is. Where moto forgets something, this says what."""
    key = aws.client("kms").create_key()["KeyMetadata"]
    aws.client("kms").enable_key_rotation(KeyId=key["KeyId"])
    assert aws.client("kms").get_key_rotation_status(KeyId=key["KeyId"])["KeyRotationEnabled"]

    dynamodb = aws.client("dynamodb")
    dynamodb.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        SSESpecification={"Enabled": True, "SSEType": "KMS", "KMSMasterKeyId": key["Arn"]},
        DeletionProtectionEnabled=True,
    )
    dynamodb.update_continuous_backups(
        TableName="leases", PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    table = dynamodb.describe_table(TableName="leases")["Table"]
    assert table["SSEDescription"] == {"Status": "ENABLED", "SSEType": "KMS", "KMSMasterKeyArn": key["Arn"]}
    assert table["DeletionProtectionEnabled"]
    backups = dynamodb.describe_continuous_backups(TableName="leases")["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
    assert refusal(lambda: dynamodb.delete_table(TableName="leases"))["Error"]["Code"] == "ValidationException"
    other = aws.client("kms").create_key()["KeyMetadata"]["Arn"]
    dynamodb.update_table(TableName="leases", SSESpecification={"Enabled": True, "KMSMasterKeyId": other})
    assert dynamodb.describe_table(TableName="leases")["Table"]["SSEDescription"]["KMSMasterKeyArn"] == other

    s3 = aws.client("s3")
    s3.create_bucket(Bucket="acme", CreateBucketConfiguration={"LocationConstraint": REGION})
    rules = [
        {
            "ID": "leftovers",
            "Status": "Enabled",
            "Filter": {"Prefix": ""},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 7},
        }
    ]
    s3.put_bucket_lifecycle_configuration(Bucket="acme", LifecycleConfiguration={"Rules": rules})
    found = s3.get_bucket_lifecycle_configuration(Bucket="acme")
    assert (found["Rules"], found["TransitionDefaultMinimumObjectSize"]) == (rules, "all_storage_classes_128K")
    encryption = [
        {
            "ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key["Arn"]},
            "BucketKeyEnabled": True,
        }
    ]
    s3.put_bucket_encryption(Bucket="acme", ServerSideEncryptionConfiguration={"Rules": encryption})
    shown = s3.get_bucket_encryption(Bucket="acme")["ServerSideEncryptionConfiguration"]["Rules"]
    assert shown == encryption

    metric = {"Namespace": "AWS/DynamoDB", "MetricName": "m", "Dimensions": [{"Name": "TableName", "Value": "leases"}]}
    queries = [
        {"Id": "reads", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}, "ReturnData": False},
        {"Id": "total", "Expression": "FILL(reads, 0)", "Label": "throttled", "ReturnData": True},
    ]
    cloudwatch = aws.client("cloudwatch")
    alarm = {
        "AlarmName": "lake/leases",
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": 0.0,
        "EvaluationPeriods": 3,
        "DatapointsToAlarm": 2,
        "TreatMissingData": "notBreaching",
        "Metrics": queries,
    }
    cloudwatch.put_metric_alarm(**alarm)
    (described,) = cloudwatch.describe_alarms(AlarmNames=["lake/leases"])["MetricAlarms"]
    assert {name: described[name] for name in alarm} == alarm


def test_an_application_of_emr_serverless_is_made_changed_tagged_and_deleted(aws: LocalAws) -> None:
    emr = aws.client("emr-serverless")
    made = emr.create_application(**SPARK, architecture="ARM64", tags={"owner": "data"})
    one, arn = made["applicationId"], made["arn"]
    assert arn == f"arn:aws:emr-serverless:{REGION}:{ACCOUNT}:/applications/{one}"
    assert emr.create_application(**SPARK, architecture="ARM64", tags={"owner": "data"})["applicationId"] == one
    assert refusal(lambda: emr.create_application(**SPARK))["Error"]["Code"] == "ConflictException"
    shown = emr.get_application(applicationId=one)["application"]
    assert (shown["type"], shown["state"], shown["architecture"]) == ("Spark", "CREATED", "ARM64")
    assert shown["autoStopConfiguration"] == {"enabled": True, "idleTimeoutMinutes": 15}
    emr.tag_resource(resourceArn=arn, tags={"team": "lake"})
    emr.untag_resource(resourceArn=arn, tagKeys=["owner"])
    assert emr.list_tags_for_resource(resourceArn=arn)["tags"] == {"team": "lake"}
    capacity = {"cpu": "8 vCPU", "memory": "64 GB"}
    emr.update_application(applicationId=one, clientToken="u", maximumCapacity=capacity)
    assert emr.get_application(applicationId=one)["application"]["maximumCapacity"] == capacity
    emr.start_application(applicationId=one)
    started = refusal(lambda: emr.delete_application(applicationId=one))["Error"]
    assert (started["Code"], "Current status: STARTED" in started["Message"]) == ("ValidationException", True)
    emr.stop_application(applicationId=one)
    emr.delete_application(applicationId=one)
    assert [each["id"] for each in emr.list_applications(states=["TERMINATED"])["applications"]] == [one]
    assert emr.list_applications(states=["CREATED"])["applications"] == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"type": "flink"}, "Unsupported engine flink"),
        ({"releaseLabel": "8.0"}, "releaseLabel must match"),
        ({"name": "a b"}, "name must match"),
    ],
)
def test_an_application_that_cannot_be_is_refused(aws: LocalAws, changes: dict[str, str], says: str) -> None:
    error = refusal(lambda: aws.client("emr-serverless").create_application(**{**SPARK, **changes}))["Error"]
    assert (error["Code"], says in error["Message"]) == ("ValidationException", True)


def test_an_application_there_is_not_is_not_found(aws: LocalAws) -> None:
    found = refusal(lambda: aws.client("emr-serverless").get_application(applicationId="00f1abcdefgh2025"))
    assert found["Error"]["Code"] == "ResourceNotFoundException"
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 404


def test_what_is_json_is_called_json(aws: LocalAws) -> None:
    answer = aws.client("scheduler").create_schedule_group(Name="jobs")
    assert answer["ScheduleGroupArn"].endswith(":schedule-group/jobs")
    assert answer["ResponseMetadata"]["HTTPHeaders"]["content-type"] == "application/json"
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="pages", CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_object(Bucket="pages", Key="page", Body=b"{", ContentType="text/html")
    assert s3.get_object(Bucket="pages", Key="page")["ContentType"] == "text/html", "as it was stored"


def test_a_bucket_is_created_with_its_tags(aws: LocalAws) -> None:
    s3 = aws.client("s3")
    tags = [{"Key": "owner", "Value": "<data> & co"}, {"Key": "team", "Value": "lake"}]
    s3.create_bucket(Bucket="acme", CreateBucketConfiguration={"LocationConstraint": REGION, "Tags": tags})
    assert s3.get_bucket_tagging(Bucket="acme")["TagSet"] == tags


def test_s3_control_is_reached_through_the_server_as_a_proxy(aws: LocalAws) -> None:
    """As Terraform's provider reads the tags of a bucket: with the account before the host, a name that nobody resolves."""
    tags = [{"Key": "owner", "Value": "data"}]
    place = {"LocationConstraint": REGION, "Tags": tags}
    aws.client("s3").create_bucket(Bucket="acme", CreateBucketConfiguration=place)
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
def test_an_operation_that_nothing_answers_is_an_error_of_aws_and_a_line_in_the_log(
    aws: LocalAws,
    caplog: pytest.LogCaptureFixture,
    service: str,
    operation: str,
    parameters: dict[str, Any],
    code: str,
) -> None:
    client = aws.client(service)
    with caplog.at_level(logging.WARNING):
        error = refusal(lambda: getattr(client, operation)(**parameters))["Error"]
    assert error["Code"] == code
    assert "does not know the operation" in error["Message"]
    (line,) = [each for each in caplog.messages if "does not know the operation" in each]
    assert "Traceback" not in caplog.text
    assert "\n" not in line


def test_a_kinesis_operation_that_nothing_answers_is_a_line_in_the_log(
    aws: LocalAws, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        kinesis = aws.client("kinesis")
        wanted = {"Status": "DISABLED"}
        error = refusal(lambda: kinesis.update_account_settings(MinimumThroughputBillingCommitment=wanted))["Error"]
    assert error["Code"] == "UnknownOperationException"
    assert caplog.messages == ["the local Kinesis does not know the operation 'UpdateAccountSettings'"]
