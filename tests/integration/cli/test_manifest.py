"""`kinesis-efo manifest`: what the document says, and whether AWS has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinesis_efo.manifest import parse_manifest
from kinesis_efo_tools.manifest_schema import SCHEMA
from tests.integration.cli.conftest import Cli, Here


def test_show_prints_the_manifest(cli: Cli, tmp_path: Path) -> None:
    here, copy = cli.world({"orders": 1, "clicks": 1}), tmp_path / "copy.json"
    found = here.run("manifest show", "--json")
    assert found.code == 0
    assert set(found.data) >= {"application", "environment", "region", "leaseTable", "source", "streams"}
    assert (found.data["application"], found.data["leaseTable"]) == ("lake", here.lease_table)
    assert set(found.data["streams"]["orders"]) >= {"streamName", "streamArn", "consumerArn"}
    shown = here.run("manifest show")
    assert here.consumers["orders"] in shown.out  # whole, although it is longer than 80 columns
    assert here.lease_table in shown.out
    copy.write_text(found.out)
    assert parse_manifest(copy.read_bytes(), "") == parse_manifest(here.manifest.read_bytes(), "")
    again = cli.run("manifest", "show", "--manifest", copy, "--json")
    assert again.data == {**found.data, "source": str(copy)}
    assert cli.run("manifest", "check", "--manifest", copy).code == 0


def test_schema_is_printed(cli: Cli) -> None:
    assert cli.run("manifest", "schema").data == SCHEMA


def test_environment_variable_names_the_manifest(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINESIS_EFO_MANIFEST", str(cli.world().manifest))
    assert cli.run("manifest", "show").code == 0


def test_remote_manifest_is_found(cli: Cli, here: Here) -> None:
    here.aws.client("ssm").put_parameter(
        Name="/kinesis-efo/test/lake", Value=here.manifest.read_text(), Type="String", Overwrite=True
    )
    found = cli.run("manifest", "show", "--manifest", "ssm:///kinesis-efo/test/lake", "--json")
    assert found.data["leaseTable"] == here.lease_table


def test_check_passes_existing_resources(cli: Cli) -> None:
    found = cli.world({"orders": 2}).run("manifest check", "--json")
    assert (found.code, found.data["failed"], found.data["unknown"]) == (0, 0, 0)
    details = {each["subject"]: each["detail"] for each in found.data["findings"]}
    assert details["stream orders"].startswith("ACTIVE, 2 open shards, 24 h retention")
    assert "key leaseKey (S), 0 rows" in details["lease table"]


def test_check_names_missing_resources_with_a_fix(cli: Cli) -> None:
    here = cli.world({"orders": 1, "clicks": 1})
    here.kinesis.deregister_stream_consumer(ConsumerARN=here.consumers["orders"])
    here.kinesis.delete_stream(StreamName=here.streams["clicks"], EnforceConsumerDeletion=True)
    here.dynamodb.delete_table(TableName=here.lease_table)
    found = here.run("manifest check", "--json")
    assert (found.code, found.data["passed"], found.data["failed"]) == (1, 1, 4)
    fixes = {each["subject"]: each["fix"] for each in found.data["findings"]}
    assert fixes["consumer of orders"].startswith("deploy again, so that the manifest names the existing consumer")
    assert fixes["stream clicks"].startswith("deploy it")
    shown = here.run("manifest check")
    assert f"lease table {here.lease_table} in us-east-1 does not exist" in shown.out
    assert "1 passed, 4 failed, 0 unknown" in shown.err
