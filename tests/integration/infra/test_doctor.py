"""`make doctor`: what a file names and AWS does not have is found, with calls that only read."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.stub import Stubber

from infra.__main__ import main
from infra.errors import AwsError
from infra.settings.doctor import Finding, Verdict, examine
from infra.settings.load import load_environment
from infra.settings.model import Environment
from kinesis_efo_local import LocalAws, Settings
from tests.support.moto_gaps import filled
from tests.support.raw_kinesis import RawKinesis, with_queue_count

REGION, ACCOUNT = "eu-west-1", "111122223333"
THEIRS = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/theirs"
NOTHING = '{"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "*", "Resource": "*"}]}'


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    settings = Settings(region=REGION, account_id=ACCOUNT, consumer_creating_seconds=0.05)
    with filled(ACCOUNT, REGION), LocalAws(settings=settings) as local:
        for name, value in local.environment.items():
            monkeypatch.setenv(name, value)
        yield local


class Reading:
    """Makes clients, and notes what they are asked."""

    def __init__(self, aws: LocalAws) -> None:
        self._aws, self.asked = aws, set[str]()

    def __call__(self, service: str, region: str) -> Any:
        client = self._aws.client(service)
        client.meta.events.register("before-call", lambda model, **_: self.asked.add(model.name))
        return client


def named(aws: LocalAws) -> dict[str, Any]:
    """A document that names what is there, all of it."""
    s3, kms, iam = aws.client("s3"), aws.client("kms"), aws.client("iam")
    for bucket in ("state", "lake", "manifests"):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
    key = kms.create_key()["KeyMetadata"]["Arn"]
    topic = aws.client("sns").create_topic(Name="oncall")["TopicArn"]
    policy = iam.create_policy(PolicyName="extra", PolicyDocument=NOTHING)["Policy"]["Arn"]
    kinesis = aws.client("kinesis")
    kinesis.create_stream(StreamName="theirs", ShardCount=1)
    kinesis.get_waiter("stream_exists").wait(StreamName="theirs", WaiterConfig={"Delay": 1})
    given = {"releaseLabel": "emr-spark-8.0.0", "type": "Spark", "architecture": "ARM64", "clientToken": "t"}
    application = aws.client("emr-serverless").create_application(name="a", **given)["applicationId"]
    lake = {
        "streams": ["theirs"],
        "output": "s3://lake/raw",
        "output_key": key,
        "access": {"kind": "emr-serverless", "application_id": application, "policies": [policy]},
    }
    return {
        "environment": "test",
        "region": REGION,
        "account_id": ACCOUNT,
        "state_bucket": "state",
        "manifest_store": "s3",
        "manifest_bucket": "manifests",
        "key": key,
        "alarms": {"sns_topic": topic},
        "streams": {"theirs": {"existing_arn": THEIRS}},
        "applications": {"lake": lake},
        "emr": {},
    }


@pytest.fixture
def declare(aws: LocalAws, tmp_path: Path) -> Callable[..., Environment]:
    """Writes a file that names what is there, with changes."""
    document, path = named(aws), tmp_path / "test.yaml"

    def declared(**changes: Any) -> Environment:
        path.write_text(yaml.safe_dump({**document, **changes}), encoding="utf-8")
        return load_environment(path)

    return declared


def wrong(found: list[Finding]) -> dict[str, str]:
    return {each.path: each.text for each in found if each.verdict is Verdict.WRONG}


def test_existing_resources_are_ok_and_unchanged(aws: LocalAws, declare: Callable[..., Environment]) -> None:
    client = Reading(aws)
    found = list(examine(declare(), client))
    assert [each for each in found if each.verdict is not Verdict.OK] == []
    assert all(each.startswith(("Get", "Describe", "List", "Head")) for each in client.asked), client.asked
    assert {each.path for each in found} >= {
        "region", "state_bucket", "manifest_bucket", "applications.lake.output", "key", "applications.lake.output_key",
        "streams.theirs.existing_arn", "alarms.sns_topic", "applications.lake.access.policies.0",
        "applications.lake.access.application_id",
    }  # fmt: skip


def test_missing_resources_are_found(aws: LocalAws, declare: Callable[..., Environment]) -> None:
    access = {
        "kind": "emr-serverless",
        "application_id": "00nobody",
        "policies": [f"arn:aws:iam::{ACCOUNT}:policy/nobodys"],
    }
    gone = {
        "state_bucket": "nobodys",
        "key": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/00000000-0000-0000-0000-000000000000",
        "alarms": {"sns_topic": f"arn:aws:sns:{REGION}:{ACCOUNT}:nobody"},
        "streams": {"theirs": {"existing_arn": f"{THEIRS}-not"}},
        "applications": {"lake": {"streams": ["theirs"], "output": "s3://nobodys-lake/raw", "access": access}},
    }
    found = wrong(list(examine(declare(**gone), Reading(aws))))
    assert found.keys() == {
        "state_bucket", "key", "alarms.sns_topic", "streams.theirs.existing_arn", "applications.lake.output",
        "applications.lake.access.application_id", "applications.lake.access.policies.0",
    }  # fmt: skip
    assert found["state_bucket"] == "there is no bucket nobodys"
    assert found["streams.theirs.existing_arn"].startswith("AWS says ResourceNotFoundException")


def test_resources_that_differ_are_found(aws: LocalAws, declare: Callable[..., Environment]) -> None:
    kms = aws.client("kms")
    key = kms.create_key()["KeyMetadata"]["Arn"]
    aws.client("kinesis").start_stream_encryption(StreamName="theirs", EncryptionType="KMS", KeyId=key)
    kms.disable_key(KeyId=key.rpartition("/")[2])
    found = wrong(list(examine(declare(key=key, emr={"architecture": "x86_64"}), Reading(aws))))
    assert found == {
        "key": f"key {key} is Disabled: enable it, or name another one",
        "streams.theirs.existing_arn": f"it is encrypted with {key}: name that as its key, and a former one under former_keys, or no reader may decrypt",
        "applications.lake.access.application_id": found["applications.lake.access.application_id"],
    }
    assert "has arm64 processors, and jobs are packed for x86_64" in found["applications.lake.access.application_id"]


def test_quota_of_an_adopted_stream_counts_queues(
    aws: LocalAws, declare: Callable[..., Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.client("kinesis").update_stream_mode(StreamARN=THEIRS, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    aws.client("kinesis").register_stream_consumer(StreamARN=THEIRS, ConsumerName="other")
    for name in ("a", "b"):
        RawKinesis(aws).create_queue(QueueName=name, StreamConfigurationList=[{"StreamARN": THEIRS}])

    def told(declared: int) -> Finding:
        session = boto3.Session()  # the model of the SDK changes
        environment = declare(applications={f"a{number}": {"streams": ["theirs"]} for number in range(declared)})
        findings = examine(environment, lambda service, region: session.client(service, region_name=region))
        (found,) = [each for each in findings if each.path == "streams.theirs"]
        return found

    assert str(told(17)) == (
        "not known: streams.theirs: 18 of 20 consumers; a queue counts as one, and this version of boto3 does not show queues"
    )
    with_queue_count(tmp_path, monkeypatch)
    assert told(17).verdict is Verdict.OK
    wrong = told(18)
    assert wrong.verdict is Verdict.WRONG
    assert "has 1 consumers and 2 queues" in wrong.text
    assert "with the 18 that this file adds there are 21, and AWS allows 20: deregister one" in wrong.text


def test_credentials_of_another_account_are_an_error(declare: Callable[..., Environment], aws: LocalAws) -> None:
    environment = declare().model_copy(update={"account_id": "999999999999"})
    with pytest.raises(AwsError, match=r"credentials are of account 111122223333, and test is in account 999999999999"):
        examine(environment, Reading(aws))


def answers(environment: Environment, aws: LocalAws, stubbed: str, prepare: Callable[[Stubber], None]) -> list[Finding]:
    """Findings, where one service answers as it is told."""
    client = boto3.client(stubbed, region_name=REGION)
    stub = Stubber(client)
    prepare(stub)
    with stub:
        return list(examine(environment, lambda service, _: client if service == stubbed else aws.client(service)))


def test_unknown_release_is_found(aws: LocalAws, declare: Callable[..., Environment]) -> None:
    """Local AWS has one page of them; botocore checks these answers against its model."""

    def pages(stub: Stubber) -> None:
        first = {"ReleaseLabels": ["emr-spark-8.1.0"], "NextToken": "more"}
        stub.add_response("list_release_labels", first, {"Filters": {"Prefix": "emr-spark"}})
        more = {"Filters": {"Prefix": "emr-spark"}, "NextToken": "more"}
        stub.add_response("list_release_labels", {"ReleaseLabels": ["emr-spark-8.0.0"]}, more)

    assert wrong(answers(declare(), aws, "emr", pages)) == {}
    found = wrong(answers(declare(emr={"release_label": "emr-spark-8.0.9"}), aws, "emr", pages))
    assert found == {
        "emr.release_label": "AWS has no release emr-spark-8.0.9 in this region; it has emr-spark-8.1.0, emr-spark-8.0.0"
    }


def test_denied_lookup_is_not_a_finding(aws: LocalAws, declare: Callable[..., Environment]) -> None:
    def denied(stub: Stubber) -> None:
        stub.add_client_error("describe_key", "AccessDeniedException", "no kms:DescribeKey", 400)
        stub.add_client_error("describe_key", "AccessDeniedException", "no kms:DescribeKey", 400)

    found = answers(declare(), aws, "kms", denied)
    (told, *_) = [each for each in found if each.path == "key"]
    assert str(told) == "not known: key: you may not look at it (AccessDeniedException: no kms:DescribeKey)"


def test_command_prints_only_findings(
    aws: LocalAws, declare: Callable[..., Environment], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    declare(state_bucket="nobodys")
    with caplog.at_level(logging.INFO):
        assert main(["--directory", str(tmp_path), "doctor", "test"]) == 1
    told = [record.getMessage() for record in caplog.records if record.name == "infra.__main__"]
    assert told[0] == "wrong: state_bucket: there is no bucket nobodys"
    assert told[-1].startswith("test: asked AWS ")
    assert told[-1].endswith(" questions; 1 wrong, 0 not known")
    assert len(told) == 2
    declare()
    assert main(["--directory", str(tmp_path), "doctor", "test"]) == 0
