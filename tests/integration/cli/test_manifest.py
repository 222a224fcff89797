"""`kinesis-efo manifest`: what the document says, and whether AWS has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.manifest import parse_manifest
from kinesis_efo_local import AwsError, NoFaults, Request
from kinesis_efo_tools.manifest_schema import SCHEMA
from tests.integration.cli.conftest import Result, Switch
from tests.support.ports import free_ports
from tests.support.world import World

Run = Callable[..., Result]


def test_show_prints_the_document(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1, "clicks": 1})
    found = run("manifest", "show", "--manifest", here.manifest, "--json")
    assert found.code == 0
    assert found.data["application"] == "lake"
    assert found.data["streams"]["clicks"]["consumerArn"] == here.consumers["clicks"]
    shown = run("manifest", "show", "--manifest", here.manifest)
    assert here.consumers["orders"] in shown.out  # whole, although it is longer than 80 columns
    assert here.lease_table in shown.out


def test_what_show_prints_is_a_manifest(run: Run, world: Callable[..., World], tmp_path: Path) -> None:
    here, copy = world({"orders": 1, "clicks": 1}), tmp_path / "copy.json"
    shown = run("manifest", "show", "--manifest", here.manifest, "--json")
    copy.write_text(shown.out)
    original = parse_manifest(here.manifest.read_bytes(), "")
    assert parse_manifest(copy.read_bytes(), "") == original
    again = run("manifest", "show", "--manifest", copy, "--json")
    assert again.data == {**shown.data, "source": str(copy)}
    assert run("manifest", "check", "--manifest", copy).code == 0


def test_the_schema_is_printed(run: Run) -> None:
    assert run("manifest", "schema").data == SCHEMA


def test_the_keys_of_show_stay(run: Run, world: Callable[..., World]) -> None:
    here = world()
    shown = run("manifest", "show", "--manifest", here.manifest, "--json").data
    assert set(shown) >= {"application", "environment", "region", "leaseTable", "source", "streams"}
    assert shown["leaseTable"] == here.lease_table
    assert set(shown["streams"]["orders"]) >= {"streamName", "streamArn", "consumerArn"}


def test_the_environment_may_name_the_manifest(
    run: Run, world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINESIS_EFO_MANIFEST", str(world().manifest))
    assert run("manifest", "show").code == 0


def test_a_remote_manifest_is_found(run: Run, world: Callable[..., World]) -> None:
    here = world()
    here.aws.client("ssm").put_parameter(
        Name="/kinesis-efo/test/lake", Value=here.manifest.read_text(), Type="String", Overwrite=True
    )
    found = run("manifest", "show", "--manifest", "ssm:///kinesis-efo/test/lake", "--json")
    assert found.data["leaseTable"] == here.lease_table


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("none.json", "there is no such file"),
        ("ssm:///kinesis-efo/none", "ParameterNotFound. Was the environment deployed"),
        ("s3://no-such-bucket-here/manifest.json", "NoSuchBucket"),
        ("ftp://somewhere", "scheme 'ftp' is not known"),
    ],
)
def test_a_manifest_that_is_not_there(run: Run, aws: Any, location: str, said: str) -> None:
    found = run("manifest", "check", "--manifest", location)
    assert (found.code, found.out) == (1, "")
    assert said in found.err


def test_a_manifest_that_is_none(run: Run, tmp_path: Path) -> None:
    wrong = tmp_path / "m.json"
    wrong.write_text(json.dumps({"schemaVersion": 1, "application": "lake", "streams": {}}))
    found = run("manifest", "show", "--manifest", wrong)
    assert found.code == 1
    assert "key 'region' is missing" in found.err
    assert "key 'leaseTable' is missing" in found.err


def test_no_manifest_is_a_usage_error(run: Run) -> None:
    assert run("manifest", "show").code == 2


def test_check_passes_what_is_there(run: Run, world: Callable[..., World]) -> None:
    found = run("manifest", "check", "--manifest", world({"orders": 2}).manifest, "--json")
    assert (found.code, found.data["failed"], found.data["unknown"]) == (0, 0, 0)
    details = {each["subject"]: each["detail"] for each in found.data["findings"]}
    assert details["stream orders"].startswith("ACTIVE, 2 open shards, 24 h retention")
    assert "key leaseKey (S), 0 rows" in details["lease table"]


def test_check_names_what_is_gone_and_the_fix(run: Run, world: Callable[..., World]) -> None:
    here = world({"orders": 1, "clicks": 1})
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    here.dynamodb.delete_table(TableName=here.lease_table)
    found = run("manifest", "check", "--manifest", here.manifest, "--json")
    assert (found.code, found.data["passed"], found.data["failed"]) == (1, 1, 4)
    fixes = {each["subject"]: each["fix"] for each in found.data["findings"]}
    assert fixes["consumer of orders"].startswith("deploy again, so that the manifest names the existing consumer")
    assert fixes["stream clicks"].startswith("deploy it")
    shown = run("manifest", "check", "--manifest", here.manifest)
    assert f"lease table {here.lease_table} in us-east-1 does not exist" in shown.out
    assert "1 passed, 4 failed, 0 unknown" in shown.err


def test_check_tells_refusals_from_absence(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world()
    switch.faults = Refusing("DescribeStreamConsumer", "Scan")
    found = run("manifest", "check", "--manifest", here.manifest, "--json")
    wrong = {each["subject"]: each for each in found.data["findings"] if each["status"] == "failed"}
    assert found.code == 1
    assert wrong["consumer of orders"]["fix"].startswith("allow kinesis:DescribeStreamConsumer to the role")
    assert "dynamodb:Scan" in wrong["lease table"]["detail"]


def test_check_has_not_passed_where_nothing_answers(run: Run, world: Callable[..., World]) -> None:
    url = f"http://127.0.0.1:{free_ports()[0]}"
    found = run("manifest", "check", "--manifest", world().manifest, "--endpoint-url", url, "--json")
    assert (found.code, found.data["passed"], found.data["failed"], found.data["unknown"]) == (1, 0, 0, 3)


class Refusing(NoFaults):
    """Has no permission for some operations."""

    def __init__(self, *operations: str) -> None:
        self.operations = operations

    async def before(self, request: Request) -> None:
        if request.operation in self.operations:
            raise AwsError("AccessDeniedException", f"User is not authorized to perform: {request.operation}")
