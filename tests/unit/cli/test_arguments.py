"""Wrong values of options that several commands share: the message has the value and the remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinesis_efo.errors import ConfigurationError, UsageError
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli.arguments import aws_settings, load
from kinesis_efo_tools.cli.extras import needed_by
from kinesis_efo_tools.cli.lease_access import start_position
from kinesis_efo_tools.cli.local_process import Ready
from kinesis_efo_tools.cli.times import check_unit
from tests.support.messages import raises


def test_wrong_value_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with raises(UsageError, "--external-id goes with --role-arn: give both"):
        aws_settings(external_id="x")
    with raises(UsageError, "--region must be a region such as eu-west-1; got 'not one'"):
        aws_settings(region="not one")
    with raises(UsageError, "--endpoint-url must be a URL such as http://127.0.0.1:4566; got 'nonsense'"):
        aws_settings(endpoint_url="nonsense")
    with raises(UsageError, "--interval: 2 of what? Say 2s, 2m or 2ms; got '2'"):
        check_unit("--interval", "2")
    with raises(UsageError, "--to AFTER is a position inside one shard: say which with --shard"):
        start_position("--to", "AFTER:5")
    with pytest.raises(UsageError, match=r"--initial-position AFTER is a position inside .*, not an application's"):
        start_position("--initial-position", "AFTER:5")
    ready = tmp_path / "ready.json"
    ready.write_text("{")
    with raises(ConfigurationError, ".../ready.json does not describe a local AWS: ...; delete it"):
        Ready.read(ready)


def test_missing_package_names_its_extra() -> None:
    with (
        raises(ConfigurationError, "kinesis-efo probe needs the package 'nowhere': pip install 'kinesis-efo[local]'"),
        needed_by("probe", "local"),
    ):
        raise ModuleNotFoundError(name="nowhere")
    with pytest.raises(ModuleNotFoundError), needed_by("probe", "local"):
        raise ModuleNotFoundError(name="kinesis_efo.no_such_module")  # a defect


def test_stream_that_the_manifest_lacks_is_named(tmp_path: Path) -> None:
    file, arn = tmp_path / "lake.json", "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
    about = {"schemaVersion": 1, "application": "lake", "environment": "dev", "region": "eu-west-1"}
    streams = {"orders": {"streamName": "orders", "streamArn": arn}}
    file.write_text(json.dumps({**about, "leaseTable": {"name": "leases"}, "streams": streams}))
    with raises(UsageError, "--stream names 'order', but the manifest .../lake.json has 'orders'"):
        load(str(file), AwsSettings(), ["order"])
