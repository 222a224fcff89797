"""`kinesis-efo manifest`: what the document says, and whether AWS has it."""

from pathlib import Path

from kinesis_efo.manifest import parse_manifest
from kinesis_efo_tools.manifest_schema import SCHEMA
from tests.integration.cli.conftest import Cli


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
    assert cli.run("manifest", "show", "--manifest", copy, "--json").data == {**found.data, "source": str(copy)}
    assert cli.run("manifest", "check", "--manifest", copy).code == 0


def test_schema_is_printed(cli: Cli) -> None:
    assert cli.run("manifest", "schema").data == SCHEMA
