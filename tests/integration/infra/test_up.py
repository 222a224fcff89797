"""An environment is declared in local AWS by API, and applied there by Terraform; the library reads both manifests."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.errors import UpError
from infra.local.up import apply_in, declare_in, localized, serving
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.app import synthesize
from kinesis_efo.aws import SyncClients
from kinesis_efo.manifest import Manifest, load_manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo_local import AwsError, LocalAws, NoFaults, Request, Settings
from tests.support.environments import DIRECTORY, EXAMPLE
from tests.support.missing import make
from tests.support.rehearsal import LocalAccount

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


def test_a_bucket_is_created_where_s3_takes_no_location(declare: Callable[..., Environment]) -> None:
    environment = localized(declare(region="us-east-1", manifest_store="s3", emr={}))
    with LocalAws(settings=Settings(region="us-east-1", consumer_creating_seconds=0)) as local:
        for _ in range(2):
            declare_in(local, environment)
        assert (
            local.client("s3").get_bucket_location(Bucket="kinesis-efo-test-111122223333")["LocationConstraint"] is None
        )


def test_what_jobs_need_is_declared_as_the_file_says(declare: Callable[..., Environment], aws: LocalAws) -> None:
    declare_in(aws, localized(declare(**EVERYTHING)))
    found = described(aws)
    assert found["streams"] == {
        "test-orders": ("PROVISIONED", 3, [("lake", "ACTIVE")]),
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


def test_a_second_time_changes_nothing(declare: Callable[..., Environment], aws: LocalAws) -> None:
    environment = localized(declare(**EVERYTHING))
    declare_in(aws, environment)
    before = manifest(aws, "lake")
    declare_in(aws, environment)
    assert manifest(aws, "lake") == before


def test_terraform_and_the_api_end_in_the_same(
    declare: Callable[..., Environment],
    provider: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = localized(declare(**EVERYTHING))
    ways: dict[str, Callable[[LocalAws], None]] = {
        "api": lambda aws: declare_in(aws, environment),
        "terraform": lambda aws: apply_in(aws, environment, tmp_path),
    }
    ended = {}
    for way, bring in ways.items():
        with monkeypatch.context() as patch, serving(environment) as aws:
            for name, value in {**provider, **aws.environment}.items():
                patch.setenv(name, value)
            bring(aws)
            ended[way] = (described(aws), manifest(aws, "lake").stream_names, manifest(aws, "ledger").lease_table)
    for found, *_ in ended.values():
        for mode, shards, consumers in found["streams"].values():
            assert mode in ("PROVISIONED", "ON_DEMAND")
            assert shards
            assert all(status in ("ACTIVE", "CREATING") for _, status in consumers)
    by_api, by_terraform = ended["api"], ended["terraform"]
    assert by_api[0]["manifests"] == by_terraform[0]["manifests"]
    assert by_api[0]["tables"] == by_terraform[0]["tables"]
    assert by_api[1:] == by_terraform[1:]


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
    "aws_kinesis_stream_consumer": {"timeouts", "tags"},
    "aws_dynamodb_table": {
        "billing_mode",
        "deletion_protection_enabled",
        "point_in_time_recovery",
        "server_side_encryption",
        "tags",
    },
    # The texts of manifests are compared by test_terraform_and_the_api_end_in_the_same.
    "aws_ssm_parameter": {"description", "key_id", "tier", "value", "tags"},
}
"""Attributes that are not, each for a reason."""
NOT_LOCAL = (
    "aws_cloudwatch_", "aws_iam_", "aws_kinesis_resource_policy", "aws_kms_",
)  # fmt: skip
"""Types that nobody needs to run a job in local AWS, where nobody is refused."""


def by_api(aws: LocalAws, kind: str) -> Iterator[dict[str, Any]]:
    """What is in local AWS of a type, in the words of the API."""
    kinesis, dynamodb, ssm = aws.client("kinesis"), aws.client("dynamodb"), aws.client("ssm")
    match kind:
        case "aws_kinesis_stream":
            for name in kinesis.list_streams()["StreamNames"]:
                summary = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
                yield summary
        case "aws_kinesis_stream_consumer":
            for name in kinesis.list_streams()["StreamNames"]:
                arn = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
                for each in kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]:
                    yield each | {"StreamARN": name}
        case "aws_dynamodb_table":
            for name in dynamodb.list_tables()["TableNames"]:
                yield dynamodb.describe_table(TableName=name)["Table"]
        case "aws_ssm_parameter":
            yield from ssm.describe_parameters()["Parameters"]


def test_what_is_declared_by_api_is_what_the_stack_declares(
    declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path
) -> None:
    partner = EVERYTHING["applications"].keys() - {"partner"}
    own = {key: EVERYTHING["applications"][key] for key in partner}
    local = localized(declare(**{**EVERYTHING, "applications": own}))
    out = synthesize([local], tmp_path, outdir=tmp_path / "out")
    document = json.loads((out / "stacks" / Names(local).stack_name / "cdk.tf.json").read_text(encoding="utf-8"))
    stack = document["resource"]
    assert {kind for kind in stack if not kind.startswith(NOT_LOCAL)} == DECLARED.keys()
    streams = {
        f"${{aws_kinesis_stream.{name}.arn}}": body["name"] for name, body in stack["aws_kinesis_stream"].items()
    }
    declare_in(aws, local)

    def of_stack(body: dict[str, Any], attribute: str) -> Any:
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
        wanted = [{name: of_stack(body, name) for name in attributes} for body in stack[kind].values()]
        found = [{name: of_api(kind, each, name) for name in attributes} for each in told]
        assert sorted(map(str, found)) == sorted(map(str, wanted)), kind


def test_two_projects_with_an_environment_of_one_name_are_declared_beside_each_other(
    declare: Callable[..., Environment], aws: LocalAws
) -> None:
    held: list[set[str]] = []
    for project in ("kinesis-efo", "lake"):
        environment = declare(project=project)
        before = LocalAccount(environment, aws.endpoint_url).holds()
        declare_in(aws, localized(environment))
        held.append(LocalAccount(environment, aws.endpoint_url).holds() - before)
    default, lake = held
    assert len(default) == len(lake) == 3, "a stream, a table, a manifest"
    assert any(each.endswith("lake.test-orders") for each in lake)
    for name, project in (("test", "kinesis-efo"), ("lake.test", "lake")):
        clients = SyncClients(AwsSettings(region=REGION, endpoint_url=aws.endpoint_url))
        loaded = load_manifest(f"ssm:///{project}/test/lake", clients)
        assert (loaded.environment, loaded.lease_table) == (name, f"{project}-test-lake")


class Refusing(NoFaults):
    async def before(self, request: Request) -> None:
        if request.operation == "PutParameter":
            raise AwsError("AccessDeniedException", "no")


def test_a_refusal_by_local_aws_is_an_error(declare: Callable[..., Environment]) -> None:
    refused = pytest.raises(UpError, match=r"local AWS cannot have test: .*AccessDeniedException.*: no")
    with LocalAws(settings=Settings(region=REGION), faults=Refusing()) as aws, refused:
        declare_in(aws, localized(declare()))


def test_a_port_that_is_taken_is_an_error(declare: Callable[..., Environment], aws: LocalAws) -> None:
    taken = pytest.raises(UpError, match=rf"cannot listen on port {aws.port}: .*; choose another PORT")
    with taken, serving(declare(), aws.port):
        pass


@pytest.mark.parametrize("command", ["up", pytest.param("apply-local", marks=pytest.mark.long)])
def test_a_command_serves_what_it_declared_until_it_is_interrupted(
    command: str,
    declare: Callable[..., Environment],
    provider: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = declare()
    program = [sys.executable, "-m", "infra", "--directory", str(tmp_path), command, "test", "--port=0"]
    with subprocess.Popen(program, cwd=ROOT, env=dict(provider), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = ""
            while told != "AWS_REGION":
                line = process.stdout.readline()
                assert line, "it has ended; its message is above"
                if line.startswith("export "):
                    told, _, value = line.removeprefix("export ").strip().partition("=")
                    monkeypatch.setenv(told, value)
            loaded = load_manifest("ssm:///kinesis-efo/test/lake", SyncClients(AwsSettings()))
            assert loaded.region == REGION
            assert loaded.streams["orders"].stream_arn.split(":")[4] == environment.account_id
            process.send_signal(signal.SIGINT if command == "up" else signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("target", ["up", "apply-local"])
def test_make_hands_on_the_files_and_the_port(target: str) -> None:
    given = ["ENV=test", "PORT=4567", "ENVIRONMENTS=examples/environments"]
    said = subprocess.run([make(), "-n", target, *given], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"-m infra --directory examples/environments {target} test --port 4567" in said.stdout


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
    declare_in(aws, localized(environment))
    assert len(aws.client("kinesis").list_streams()["StreamNames"]) == len(environment.streams)


@pytest.mark.parametrize("where", [{"manifest_bucket": "manifests"}, {"emr": {}}], ids=["given", "artifacts"])
@pytest.mark.parametrize("by_terraform", [False, True])
def test_manifests_in_s3_are_where_the_library_finds_them(
    by_terraform: bool,
    where: dict[str, Any],
    declare: Callable[..., Environment],
    aws: LocalAws,
    provider: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in provider.items():
        monkeypatch.setenv(name, value)
    environment = localized(declare(manifest_store="s3", **where))
    location = Names(environment).manifest_location("lake")
    assert location.startswith("s3://")
    if by_terraform:
        apply_in(aws, environment, tmp_path)
    else:
        declare_in(aws, environment)
    loaded = load_manifest(location, SyncClients(AwsSettings(region=REGION, endpoint_url=aws.endpoint_url)))
    assert (loaded.application, loaded.lease_table) == ("lake", "kinesis-efo-test-lake")
    parameters = {each["Name"] for each in aws.client("ssm").describe_parameters()["Parameters"]}
    assert "/kinesis-efo/test/lake" not in parameters


def test_no_job_is_declared(declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path) -> None:
    lake = {
        "streams": ["orders"],
        "continuous": False,
        "access": {"kind": "emr-serverless", "policies": ["arn:aws:iam::111122223333:policy/theirs"]},
    }
    job = {"application": "lake", "program": "jobs/archive.py", "arguments": [], "schedule": "rate(1 day)"}
    local = localized(declare(emr={}, jobs=[job], applications={"lake": lake}))
    out = synthesize([local], tmp_path, outdir=tmp_path / "out")
    document = (out / "stacks" / Names(local).stack_name / "cdk.tf.json").read_text(encoding="utf-8")
    for left_out in ("aws_emrserverless", "aws_scheduler", "jobs/archive.py", "policy/theirs"):
        assert left_out not in document
