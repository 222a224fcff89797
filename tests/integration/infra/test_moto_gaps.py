"""What the rehearsal of a deployment needs of services other than Kinesis, and moto does not give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinesis_efo_local import LocalAws, Settings
from tests.integration.local.test_other_services import ACCOUNT, REGION, refusal
from tests.support.moto_gaps import filled

SPARK = {"name": "jobs", "releaseLabel": "emr-spark-8.0.0", "type": "spark", "clientToken": "once"}


@pytest.fixture
def aws() -> Iterator[LocalAws]:
    with filled(ACCOUNT, REGION), LocalAws(settings=Settings(region=REGION, account_id=ACCOUNT)) as local:
        yield local


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


def test_a_bucket_is_created_with_its_tags(aws: LocalAws) -> None:
    s3 = aws.client("s3")
    tags = [{"Key": "owner", "Value": "<data> & co"}, {"Key": "team", "Value": "lake"}]
    s3.create_bucket(Bucket="acme", CreateBucketConfiguration={"LocationConstraint": REGION, "Tags": tags})
    assert s3.get_bucket_tagging(Bucket="acme")["TagSet"] == tags


def test_a_table_takes_another_key(aws: LocalAws) -> None:
    dynamodb, kms = aws.client("dynamodb"), aws.client("kms")
    first, second = (kms.create_key()["KeyMetadata"]["Arn"] for _ in range(2))
    dynamodb.create_table(
        TableName="leases",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
        SSESpecification={"Enabled": True, "SSEType": "KMS", "KMSMasterKeyId": first},
    )
    dynamodb.update_table(TableName="leases", SSESpecification={"Enabled": True, "KMSMasterKeyId": second})
    assert dynamodb.describe_table(TableName="leases")["Table"]["SSEDescription"]["KMSMasterKeyArn"] == second
