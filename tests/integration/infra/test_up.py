"""An environment is declared in local AWS by API, and applied there by Terraform; the library reads both manifests."""

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
    return load_manifest(f"ssm:///kinesis-efo/test/{application}", SyncClients(settings).client)


NOT_LOCAL = {
    "MaxRecordSizeInKiB", "StreamARN", "StreamCreationTimestamp", "EncryptionType", "KeyId", "EnhancedMonitoring", "StreamId",
}  # fmt: skip
"""What costs money or keeps data where AWS is real, is declared by Terraform alone; the stand-in does not send the size of records."""


def described(aws: LocalAws, environment: Environment) -> dict[str, Any]:
    """The resources declared in local AWS, without times of creation; manifests as the library reads them."""
    kinesis, dynamodb, ssm = aws.client("kinesis"), aws.client("dynamodb"), aws.client("ssm")
    streams, clients = {}, SyncClients(AwsSettings(region=REGION, endpoint_url=aws.endpoint_url))
    for name in kinesis.list_streams()["StreamNames"]:
        summary = kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
        consumers = kinesis.list_stream_consumers(StreamARN=summary["StreamARN"])["Consumers"]
        streams[name] = {key: value for key, value in summary.items() if key not in NOT_LOCAL}
        streams[name] |= {"consumers": sorted(each["ConsumerName"] for each in consumers)}
    tables = [dynamodb.describe_table(TableName=name)["Table"] for name in sorted(dynamodb.list_tables()["TableNames"])]
    locations = [Names(environment).manifest_location(each) for each in ("lake", "ledger")]
    manifests = [str(load_manifest(each, clients.client)) for each in locations]
    parameters = sorted((each["Name"], each["Type"]) for each in ssm.describe_parameters()["Parameters"])
    keys = ("TableName", "KeySchema", "AttributeDefinitions")
    return {
        "streams": streams,
        "tables": [[each[key] for key in keys] for each in tables],
        # Jobs are declared by Terraform alone.
        "parameters": [each for each in parameters if not each[0].endswith("/job")],
        "manifests": [re.sub(r":\d{10}\b", ":<created>", each) for each in manifests],
    }


def test_bucket_is_created_where_s3_has_no_location(declare: Callable[..., Environment]) -> None:
    environment = localized(declare(region="us-east-1", manifest_store="s3", emr={}))
    with LocalAws(settings=Settings(region="us-east-1", consumer_creating_seconds=0)) as local:
        for _ in range(2):
            declare_in(local, environment)
        found = local.client("s3").get_bucket_location(Bucket="kinesis-efo-test-111122223333")
        assert found["LocationConstraint"] is None


def test_resources_of_jobs_are_declared_once(declare: Callable[..., Environment], aws: LocalAws) -> None:
    environment = localized(declare(**EVERYTHING))
    declare_in(aws, environment)
    before = manifest(aws, "lake")
    declare_in(aws, environment)
    assert manifest(aws, "lake") == before, "a second time changes nothing"
    found = described(aws, environment)
    declared = {
        name: (each["StreamModeDetails"]["StreamMode"], each["OpenShardCount"], each["consumers"])
        for name, each in found["streams"].items()
    }
    assert declared == {
        "test-orders": ("PROVISIONED", 3, ["lake"]),
        "test-clicks": ("ON_DEMAND", 4, ["lake"]),
        "payments": ("PROVISIONED", 1, ["ledger"]),
        "events": ("PROVISIONED", 1, ["lake"]),
    }
    assert [name for name, *_ in found["tables"]] == ["Ledger2", "kinesis-efo-test-lake"]
    assert all(keys == [{"AttributeName": "leaseKey", "KeyType": "HASH"}] for _, keys, _ in found["tables"])
    orders = aws.client("kinesis").describe_stream_summary(StreamName="test-orders")["StreamDescriptionSummary"]
    assert (orders["RetentionPeriodHours"], orders["MaxRecordSizeInKiB"]) == (48, 2048)
    assert set(manifest(aws, "lake").streams) == {"orders", "clicks", "events"}
    assert manifest(aws, "ledger").lease_table == "Ledger2"


@pytest.mark.parametrize(
    "where",
    [{}, {"manifest_store": "s3", "manifest_bucket": "manifests"}, {"manifest_store": "s3", "emr": {}}],
    ids=["ssm", "given bucket", "artifacts"],
)
def test_terraform_and_api_declare_the_same(
    where: dict[str, Any],
    declare: Callable[..., Environment],
    provider: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {key: each for key, each in EVERYTHING["applications"].items() if key != "partner"}
    environment = localized(declare(**{**EVERYTHING, **where, "applications": own}))
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
            ended[way] = described(aws, environment)
    assert ended["api"] == ended["terraform"]
    assert bool(ended["api"]["parameters"]) == (not where)


def test_projects_with_one_environment_name_do_not_collide(declare: Callable[..., Environment], aws: LocalAws) -> None:
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
        loaded = load_manifest(f"ssm:///{project}/test/lake", clients.client)
        assert (loaded.environment, loaded.lease_table) == (name, f"{project}-test-lake")


class Refusing(NoFaults):
    async def before(self, request: Request) -> None:
        if request.operation == "PutParameter":
            raise AwsError("AccessDeniedException", "no")


def test_refusal_by_local_aws_is_an_error(declare: Callable[..., Environment]) -> None:
    refused = pytest.raises(UpError, match=r"local AWS cannot have test: .*AccessDeniedException.*: no")
    with LocalAws(settings=Settings(region=REGION), faults=Refusing()) as aws, refused:
        declare_in(aws, localized(declare()))


def test_occupied_port_is_an_error(declare: Callable[..., Environment], aws: LocalAws) -> None:
    taken = pytest.raises(UpError, match=rf"cannot listen on port {aws.port}: .*; choose another PORT")
    with taken, serving(declare(), aws.port):
        pass


@pytest.mark.parametrize("command", ["up", pytest.param("apply-local", marks=pytest.mark.long)])
def test_command_serves_until_interrupted(
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
            loaded = load_manifest("ssm:///kinesis-efo/test/lake", SyncClients(AwsSettings()).client)
            assert loaded.region == REGION
            assert loaded.streams["orders"].stream_arn.split(":")[4] == environment.account_id
            process.send_signal(signal.SIGINT if command == "up" else signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_adopted_streams_of_one_name_are_refused(declare: Callable[..., Environment]) -> None:
    other = FOREIGN.replace("events", "payments")
    theirs = {"existing_arn": other, "consumers": {"lake": f"{other}/consumer/lake:1"}}
    streams = {"orders": {"existing_arn": ADOPTED}, "other": theirs}
    environment = declare(streams=streams, applications={"lake": {"streams": list(streams)}})
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


def test_no_job_is_declared(declare: Callable[..., Environment], aws: LocalAws, tmp_path: Path) -> None:
    access = {"kind": "emr-serverless", "policies": ["arn:aws:iam::111122223333:policy/theirs"]}
    lake = {"streams": ["orders"], "continuous": False, "access": access}
    job = {"application": "lake", "program": "jobs/archive.py", "arguments": [], "schedule": "rate(1 day)"}
    local = localized(declare(emr={}, jobs=[job], applications={"lake": lake}))
    out = synthesize([local], tmp_path, outdir=tmp_path / "out")
    document = (out / "stacks" / Names(local).stack_name / "cdk.tf.json").read_text(encoding="utf-8")
    for left_out in ("aws_emrserverless", "aws_scheduler", "jobs/archive.py", "policy/theirs"):
        assert left_out not in document
