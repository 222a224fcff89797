"""An environment is declared in local AWS through Terraform and through boto3; the library reads both manifests."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.__main__ import main
from infra.errors import UpError
from infra.local.account import LocalAccount
from infra.local.up import Way, localized, up
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.app import synthesize
from kinesis_efo.aws import SyncClients
from kinesis_efo.emr.deployment import load_deployment
from kinesis_efo.local import LocalAws, Settings
from kinesis_efo.manifest import Manifest, load_manifest
from kinesis_efo.options import AwsSettings
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.missing import make

ROOT = Path(__file__).resolve().parents[3]
REGION = "eu-west-1"
ADOPTED = "arn:aws:kinesis:eu-west-1:111122223333:stream/payments"
FOREIGN = "arn:aws:kinesis:eu-west-1:777788889999:stream/events"
EVERYTHING: dict[str, Any] = {
    "streams": {
        "orders": {"mode": "provisioned", "shards": 3, "retention_hours": 48, "max_record_kib": 2048},
        "clicks": {},
        "payments": {"existing_arn": ADOPTED},
        "events": {"existing_arn": FOREIGN, "consumers": {"lake": f"{FOREIGN}/consumer/lake:1"}},
    },
    "applications": {
        "lake": {"streams": ["orders", "clicks", "events"], "access": {"kind": "emr-ec2"}},
        "ledger": {"streams": ["payments"], "lease_table": "Ledger2", "import_lease_table": True},
        "partner": {
            "streams": ["orders"],
            "access": {"kind": "other-account", "principals": ["arn:aws:iam::777788889999:root"]},
        },
    },
}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(region=REGION, consumer_creating_seconds=0.2)) as local:
        for name, value in local.environment.items():
            monkeypatch.setenv(name, value)
        yield local


def manifest(aws: LocalAws, application: str) -> Manifest:
    settings = AwsSettings(region=REGION, endpoint_url=aws.endpoint_url)
    return load_manifest(f"ssm:///kinesis-efo/test/{application}", SyncClients(settings))


def described(aws: LocalAws) -> dict[str, Any]:
    """The resources declared in local AWS, without times of creation."""
    kinesis, dynamodb = aws.client("kinesis"), aws.client("dynamodb")
    streams = {}
    for name in kinesis.list_streams()["StreamNames"]:
        summary = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        consumers = kinesis.list_stream_consumers(StreamARN=summary["StreamARN"])["Consumers"]
        streams[name] = (
            summary["StreamModeDetails"]["StreamMode"],
            summary["OpenShardCount"],
            sorted((consumer["ConsumerName"], consumer["ConsumerStatus"]) for consumer in consumers),
        )
    tables = {
        name: dynamodb.describe_table(TableName=name)["Table"]["KeySchema"]
        for name in dynamodb.list_tables()["TableNames"]
    }
    parameters = {
        name: json.loads(
            re.sub(
                r":\d{10}\b",
                ":<created>",
                aws.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"],
            )
        )
        for name in ("/kinesis-efo/test/lake", "/kinesis-efo/test/ledger")
    }
    return {"streams": streams, "tables": tables, "manifests": parameters}


def test_a_bucket_is_created_where_s3_takes_no_location(declare: Callable[..., Environment], tmp_path: Path) -> None:
    declare(region="us-east-1", emr={})
    with LocalAws(settings=Settings(region="us-east-1", consumer_creating_seconds=0)) as local:
        up(tmp_path, "test", local.endpoint_url)
        up(tmp_path, "test", local.endpoint_url)
        assert (
            local.client("s3").get_bucket_location(Bucket="kinesis-efo-test-111122223333")["LocationConstraint"] is None
        )


def test_boto3_declares_exactly_what_the_file_says(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path
) -> None:
    declare(**EVERYTHING)
    up(tmp_path, "test", aws.endpoint_url, through="boto3")
    found = described(aws)
    assert found["streams"] == {
        "test-orders": ("PROVISIONED", 3, [("lake", "ACTIVE"), ("partner", "ACTIVE")]),
        "test-clicks": ("ON_DEMAND", 4, [("lake", "ACTIVE")]),
        "payments": ("PROVISIONED", 1, [("ledger", "ACTIVE")]),
        "events": ("PROVISIONED", 1, [("lake", "ACTIVE")]),
    }
    key = [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
    assert found["tables"] == {"kinesis-efo-test-lake": key, "Ledger2": key}
    orders = aws.client("kinesis").describe_stream_summary(StreamName="test-orders")["StreamDescriptionSummary"]
    assert orders["RetentionPeriodHours"] == 48
    assert orders["MaxRecordSizeInKiB"] == 2048
    assert set(manifest(aws, "lake").streams) == {"orders", "clicks", "events"}
    assert manifest(aws, "ledger").lease_table == "Ledger2"


def test_a_second_time_changes_nothing(declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path) -> None:
    declare(**EVERYTHING)
    up(tmp_path, "test", aws.endpoint_url, through="boto3")
    before = manifest(aws, "lake")
    up(tmp_path, "test", aws.endpoint_url, through="boto3")
    assert manifest(aws, "lake") == before


def test_terraform_and_boto3_end_in_the_same(
    declare: Callable[..., Environment],
    provider: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(**EVERYTHING)
    ways = {}
    for way in ("boto3", "terraform"):
        with monkeypatch.context() as patch, LocalAws(settings=Settings(region=REGION)) as aws:
            for name, value in {**provider, **aws.environment}.items():
                patch.setenv(name, value)
            up(tmp_path, "test", aws.endpoint_url, through=way)
            ways[way] = (described(aws), manifest(aws, "lake").stream_names, manifest(aws, "ledger").lease_table)
    described_by_boto3, described_by_terraform = ways["boto3"][0], ways["terraform"][0]
    for found in (described_by_boto3, described_by_terraform):
        for mode, shards, consumers in found["streams"].values():
            assert mode in ("PROVISIONED", "ON_DEMAND")
            assert shards
            assert all(status in ("ACTIVE", "CREATING") for _, status in consumers)
    assert described_by_boto3["manifests"] == described_by_terraform["manifests"]
    assert described_by_boto3["tables"] == described_by_terraform["tables"]
    assert ways["boto3"][1:] == ways["terraform"][1:]


DECLARED = {
    # The attribute in the stack, and what AWS calls it.
    "aws_kinesis_stream": {
        "name": "StreamName",
        "retention_period": "RetentionPeriodHours",
        "max_record_size_in_kib": "MaxRecordSizeInKiB",
        "shard_count": "OpenShardCount",
        "stream_mode_details": "StreamModeDetails",
    },
    "aws_kinesis_stream_consumer": {"name": "ConsumerName", "stream_arn": "StreamARN"},
    "aws_dynamodb_table": {"name": "TableName", "hash_key": "KeySchema", "attribute": "AttributeDefinitions"},
    "aws_ssm_parameter": {"name": "Name", "type": "Type"},
    "aws_s3_bucket": {"bucket": "Name"},
    "aws_emrserverless_application": {
        "name": "name",
        "release_label": "releaseLabel",
        "architecture": "architecture",
        "type": "type",
    },
}
"""What is declared by API as the stack declares it."""
LEFT_OUT = {
    # Keys, and what costs money or keeps data where AWS is real; local AWS ends with the command.
    "aws_kinesis_stream": {
        "encryption_type",
        "kms_key_id",
        "shard_level_metrics",
        "enforce_consumer_deletion",
        "timeouts",
        "tags",
    },
    "aws_kinesis_stream_consumer": {"timeouts"},
    "aws_dynamodb_table": {
        "billing_mode",
        "deletion_protection_enabled",
        "point_in_time_recovery",
        "server_side_encryption",
        "tags",
    },
    # The texts of manifests are compared by test_terraform_and_boto3_end_in_the_same.
    "aws_ssm_parameter": {"description", "key_id", "tier", "value", "tags"},
    "aws_s3_bucket": {"tags", "force_destroy"},
    "aws_emrserverless_application": {
        "auto_start_configuration",
        "auto_stop_configuration",
        "maximum_capacity",
        "network_configuration",
        "tags",
    },
}
"""Attributes that are not, each for a reason."""
NOT_LOCAL = (
    "aws_cloudwatch_", "aws_iam_", "aws_kinesis_resource_policy", "aws_kms_", "aws_s3_bucket_", "aws_s3_object", "aws_scheduler_",
    "aws_security_group",
)  # fmt: skip
"""Types that nobody needs to run a job in local AWS, where nobody is refused."""


def by_api(aws: LocalAws, kind: str) -> Iterator[dict[str, Any]]:
    """What is in local AWS of a type, in the words of the API."""
    kinesis, dynamodb, ssm = aws.client("kinesis"), aws.client("dynamodb"), aws.client("ssm")
    match kind:
        case "aws_kinesis_stream":
            for name in kinesis.list_streams()["StreamNames"]:
                summary = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
                yield summary | {"tags": kinesis.list_tags_for_resource(ResourceARN=summary["StreamARN"])["Tags"]}
        case "aws_kinesis_stream_consumer":
            for name in kinesis.list_streams()["StreamNames"]:
                arn = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
                for each in kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]:
                    tags = kinesis.list_tags_for_resource(ResourceARN=each["ConsumerARN"])["Tags"]
                    yield each | {"StreamARN": name, "tags": tags}
        case "aws_dynamodb_table":
            for name in dynamodb.list_tables()["TableNames"]:
                table = dynamodb.describe_table(TableName=name)["Table"]
                yield table | {"tags": dynamodb.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]}
        case "aws_ssm_parameter":
            yield from ssm.describe_parameters()["Parameters"]
        case "aws_s3_bucket":
            yield from aws.client("s3").list_buckets()["Buckets"]
        case "aws_emrserverless_application":
            for each in aws.client("emr-serverless").list_applications()["applications"]:
                yield aws.client("emr-serverless").get_application(applicationId=each["id"])["application"]


def test_what_is_declared_by_api_is_what_the_stack_declares(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path
) -> None:
    environment = declare(**EVERYTHING, tags={"owner": "data"}, emr={"serverless": {}})
    local = localized(environment)
    out = synthesize([local], tmp_path, outdir=tmp_path / "out", local_endpoint=aws.endpoint_url)
    document = json.loads((out / "stacks" / Names(local).stack_name / "cdk.tf.json").read_text(encoding="utf-8"))
    (configured,) = document["provider"]["aws"]
    (default_tags,) = configured["default_tags"]
    stack = document["resource"]
    assert {kind for kind in stack if not kind.startswith(NOT_LOCAL) or kind == "aws_s3_bucket"} == DECLARED.keys()
    streams = {
        f"${{aws_kinesis_stream.{name}.arn}}": body["name"] for name, body in stack["aws_kinesis_stream"].items()
    }
    up(tmp_path, "test", aws.endpoint_url)

    def of_stack(kind: str, body: dict[str, Any], attribute: str) -> Any:
        value = (
            streams.get(body.get(attribute), body.get(attribute)) if attribute == "stream_arn" else body.get(attribute)
        )
        match attribute:
            case "stream_mode_details":
                return body[attribute]["stream_mode"]
            case "retention_period" | "max_record_size_in_kib":
                return value or {"retention_period": 24, "max_record_size_in_kib": 1024}[attribute]
            case "attribute":
                return [(each["name"], each["type"]) for each in value]
            case "architecture":
                return value.upper()
            case "type" if kind == "aws_emrserverless_application":
                return value.capitalize()
        return value

    def of_api(kind: str, told: dict[str, Any], attribute: str) -> Any:
        value = told.get(DECLARED[kind][attribute])
        match attribute:
            case "stream_mode_details":
                return value["StreamMode"]
            case "hash_key":
                (key,) = value
                return key["AttributeName"] if key["KeyType"] == "HASH" else key
            case "attribute":
                return [(each["AttributeName"], each["AttributeType"]) for each in value]
            case "shard_count" if told["StreamModeDetails"]["StreamMode"] == "ON_DEMAND":
                return None  # AWS decides
        return value

    for kind, attributes in DECLARED.items():
        told = list(by_api(aws, kind))
        for body in stack[kind].values():
            unknown = (
                {name for name, value in body.items() if value not in (None, [], {})}
                - attributes.keys()
                - LEFT_OUT[kind]
            )
            assert unknown <= {"//", "lifecycle", "depends_on", "provider"}, f"{kind}: declare it, or say why not"
        wanted = [{name: of_stack(kind, body, name) for name in attributes} for body in stack[kind].values()]
        found = [{name: of_api(kind, each, name) for name in attributes} for each in told]
        assert sorted(map(str, found)) == sorted(map(str, wanted)), kind
        for each in told:
            tags = each.get("tags", default_tags["tags"])
            tags = tags if isinstance(tags, dict) else {tag["Key"]: tag["Value"] for tag in tags}
            assert tags == default_tags["tags"], kind


@pytest.fixture
def terraform_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the calls of an OpenTofu on the PATH that cannot reach its registry."""
    calls, program = tmp_path / "calls", tmp_path / "bin" / "tofu"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$2" >> {calls}\necho "Error: could not connect to registry" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "tofu")
    return calls


def test_terraform_declares_only_where_it_is_asked_for(
    declare: Callable[..., Environment],
    aws: LocalAws,
    tmp_path: Path,
    terraform_calls: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    declare()
    asked = ["--directory", str(tmp_path), "up", "test", "--endpoint", aws.endpoint_url]
    with caplog.at_level(logging.INFO):
        assert main(asked) == 0
    assert not terraform_calls.exists()
    assert f"declared test at {aws.endpoint_url} through boto3" in caplog.text
    assert f"export AWS_ENDPOINT_URL={aws.endpoint_url} AWS_REGION={REGION}" in caplog.text
    assert manifest(aws, "lake").application == "lake"

    assert main([*asked, "--through", "terraform"]) == 1
    assert terraform_calls.read_text() == "init\n"
    assert "tofu init failed" in caplog.text
    assert "could not connect to registry; mend that, or leave out `--through terraform`" in caplog.text


def test_terraform_that_is_asked_for_and_missing_is_an_error(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare()
    monkeypatch.setenv("TERRAFORM_BINARY_NAME", "no-such-terraform")
    with pytest.raises(UpError, match="there is no no-such-terraform on the PATH"):
        up(tmp_path, "test", aws.endpoint_url, through="terraform")
    assert aws.client("kinesis").list_streams()["StreamNames"] == []


@pytest.mark.parametrize(
    ("given", "directory", "through"),
    [
        ([], "infra/environments", ""),
        (["THROUGH=terraform"], "infra/environments", "--through terraform"),
        (["ENVIRONMENTS=examples/environments"], "examples/environments", ""),
    ],
)
def test_make_hands_on_the_files_and_the_way(given: list[str], directory: str, through: str) -> None:
    said = subprocess.run(
        [make(), "-n", "up", "ENV=test", *given], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (command,) = [line for line in said.stdout.splitlines() if f"-m infra --directory {directory} up test" in line]
    assert command.partition("4566 ")[2].partition("||")[0].strip() == through


def test_a_job_is_described_and_its_bucket_is_there(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path
) -> None:
    arguments = ["--output", "s3://lake/raw"]
    job = {"application": "lake", "program": "jobs/archive.py", "arguments": arguments, "target": "eks:abc"}
    access = {
        "kind": "eks",
        "oidc_provider_arn": "arn:aws:iam::111122223333:oidc-provider/oidc.eks/id/E",
        "namespace": "lake",
        "service_account": "emr-*",
        "policies": ["arn:aws:iam::111122223333:policy/lake"],
    }
    declare(emr={}, jobs=[job], applications={"lake": {"streams": ["orders"], "access": access}})
    for _ in range(2):
        up(tmp_path, "test", aws.endpoint_url, through="boto3")
    found = load_deployment("test", "lake", aws.client("ssm"))
    assert (found.target, found.program, list(found.arguments)) == ("eks:abc", "jobs/archive.py", arguments)
    assert found.role_arn == "arn:aws:iam::111122223333:role/kinesis-efo-test-lake"
    aws.client("s3").head_bucket(Bucket=found.artifacts.removeprefix("s3://"))


def test_two_projects_with_an_environment_of_one_name_are_declared_beside_each_other(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path
) -> None:
    held: list[set[str]] = []
    for project in ("kinesis-efo", "lake"):
        environment = declare(project=project, emr={})
        before = LocalAccount(environment, aws.endpoint_url).holds()
        up(tmp_path, "test", aws.endpoint_url)
        held.append(LocalAccount(environment, aws.endpoint_url).holds() - before)
    default, lake = held
    assert len(default) == len(lake) == 6, (
        "a stream, a table, a manifest, the description of a job, a bucket, an application"
    )
    assert any(each.endswith("lake.test-orders") for each in lake)
    ssm = aws.client("ssm")
    for name, project in (("test", "kinesis-efo"), ("lake.test", "lake")):
        found = load_deployment(name, "lake", ssm)
        assert (found.environment, found.manifest) == (name, f"ssm:///{project}/test/lake")
        clients = SyncClients(AwsSettings(region=REGION, endpoint_url=aws.endpoint_url))
        loaded = load_manifest(found.manifest, clients)
        assert (loaded.environment, loaded.lease_table) == (name, f"{project}-test-lake")


def test_only_local_endpoints_are_declared_in(declare: Callable[..., Environment], tmp_path: Path) -> None:
    declare()
    with pytest.raises(UpError, match=r"must be local AWS .* never AWS itself; got 'https://kinesis.eu-west-1"):
        up(tmp_path, "test", "https://kinesis.eu-west-1.amazonaws.com")


def test_when_nothing_answers_it_says_how_to_start_it(declare: Callable[..., Environment], tmp_path: Path) -> None:
    declare()
    times = iter(range(100))
    with pytest.raises(UpError, match=r"nothing answers at http://127.0.0.1:1 within 3 s; .*`kinesis-efo local`"):
        up(tmp_path, "test", "http://127.0.0.1:1", wait_seconds=3, clock=lambda: next(times), sleep=lambda _: None)


def test_a_refusal_by_local_aws_is_an_error(declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path) -> None:
    declare()
    aws.client("dynamodb").create_table(
        TableName="kinesis-efo-test-lake",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(UpError, match=r"kinesis-efo-test-lake .* has another key than leaseKey"):
        up(tmp_path, "test", aws.endpoint_url, through="boto3")


def test_two_adopted_streams_of_one_name_cannot_both_be_local(declare: Callable[..., Environment]) -> None:
    other = FOREIGN.replace("events", "payments")
    environment = declare(
        streams={
            "orders": {"existing_arn": ADOPTED},
            "other": {"existing_arn": other, "consumers": {"lake": f"{other}/consumer/lake:1"}},
        },
        applications={"lake": {"streams": ["orders", "other"]}},
    )
    with pytest.raises(UpError, match=r"streams.orders and streams.other are both called payments"):
        localized(environment)


@pytest.mark.parametrize("path", [DIRECTORY / "dev.yaml", DIRECTORY / "prod.yaml", EXAMPLE], ids=lambda path: path.stem)
def test_complete_environments_come_up(path: Path, aws: LocalAws, tmp_path: Path) -> None:
    name, document = path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))
    del document["pipeline"]  # which names environments that are not in this directory
    document["environment"] = f"{name}x"
    (tmp_path / f"{name}x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    environment = load_environment(tmp_path / f"{name}x.yaml")
    up(tmp_path, f"{name}x", aws.endpoint_url, through="boto3")
    assert len(aws.client("kinesis").list_streams()["StreamNames"]) == len(environment.streams)


@pytest.mark.parametrize("where", [{"manifest_bucket": "manifests"}, {"emr": {}}], ids=["given", "artifacts"])
@pytest.mark.parametrize("through", ["boto3", "terraform"])
def test_manifests_in_s3_are_where_the_library_finds_them(
    through: Way,
    where: dict[str, Any],
    declare: Callable[..., Environment],
    aws: LocalAws,
    provider: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in provider.items():
        monkeypatch.setenv(name, value)
    location = Names(declare(manifest_store="s3", **where)).manifest_location("lake")
    assert location.startswith("s3://")
    up(tmp_path, "test", aws.endpoint_url, through=through)
    loaded = load_manifest(location, SyncClients(AwsSettings(region=REGION, endpoint_url=aws.endpoint_url)))
    assert (loaded.application, loaded.lease_table) == ("lake", "kinesis-efo-test-lake")
    parameters = {each["Name"] for each in aws.client("ssm").describe_parameters()["Parameters"]}
    assert "/kinesis-efo/test/lake" not in parameters


SERVERLESS_JOB = {
    "application": "lake",
    "program": "jobs/archive.py",
    "arguments": ["--output", "$output", "--checkpoint", "$checkpoint"],
}
SERVERLESS_LAKE = {
    "streams": ["orders"],
    "output": "s3://lake/raw",
    "checkpoint": "s3://lake/checkpoints",
    "access": {"kind": "emr-serverless"},
}


@pytest.mark.parametrize("through", ["boto3", "terraform"])
def test_a_job_on_emr_serverless_has_a_place_to_be_rehearsed_on(
    declare: Callable[..., Environment],
    aws: LocalAws,
    provider: Mapping[str, str],
    tmp_path: Path,
    through: Way,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**provider, **aws.environment}.items():
        monkeypatch.setenv(name, value)
    declare(emr={}, jobs=[SERVERLESS_JOB], applications={"lake": SERVERLESS_LAKE})
    for _ in range(2 if through == "boto3" else 1):
        up(tmp_path, "test", aws.endpoint_url, through=through)
    found = load_deployment("test", "lake", aws.client("ssm"))
    emr = aws.client("emr-serverless")
    (application,) = emr.list_applications()["applications"]
    assert (found.program, found.target) == ("jobs/archive.py", f"serverless:{application['id']}")
    assert (application["name"], application["architecture"]) == ("kinesis-efo-test", "ARM64")
    assert emr.list_job_runs(applicationId=application["id"])["jobRuns"] == []


def test_a_job_on_an_application_that_exists_is_rehearsed_on_a_local_one(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path
) -> None:
    lake = {**SERVERLESS_LAKE, "access": {"kind": "emr-serverless", "application_id": "00f1theirs"}}
    job = {**SERVERLESS_JOB, "target": "serverless:00f1theirs"}
    declare(emr={"serverless": None}, jobs=[job], applications={"lake": lake})
    up(tmp_path, "test", aws.endpoint_url)
    (application,) = aws.client("emr-serverless").list_applications()["applications"]
    assert load_deployment("test", "lake", aws.client("ssm")).target == f"serverless:{application['id']}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a program."""
    directory = tmp_path / "project"
    (directory / "jobs").mkdir(parents=True)
    (directory / "jobs" / "archive.py").write_text("print('a job')\n", encoding="utf-8")
    return directory


def submitted(aws: LocalAws, project: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run `emr submit` in a process of its own, where no uv is to be found: packing fails."""
    command = [str(Path(sys.executable).with_name("kinesis-efo")), "emr", "submit", "-e", "test", "-a", "lake"]
    return subprocess.run(
        [*command, "--project", str(project), *more],
        env={**os.environ, **aws.environment, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_rehearsal_refuses_before_it_packs(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path, project: Path
) -> None:
    declare(emr={}, jobs=[SERVERLESS_JOB], applications={"lake": SERVERLESS_LAKE})
    up(tmp_path, "test", aws.endpoint_url)
    kinesis = aws.client("kinesis")
    (consumer,) = kinesis.list_stream_consumers(
        StreamARN=kinesis.describe_stream_summary(StreamName="test-orders")["StreamDescriptionSummary"]["StreamARN"]
    )["Consumers"]
    kinesis.deregister_stream_consumer(ConsumerARN=consumer["ConsumerARN"])
    for more in (["--dry-run"], []):
        said = submitted(aws, project, *more)
        assert said.returncode == 3, said.stderr
        assert "packing" not in said.stderr
        assert "not submitted:\n  consumer " in said.stderr
