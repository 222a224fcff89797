"""Wrong values of options that several commands share: the message has the value and the remedy."""

import json
import tempfile
from pathlib import Path

import pytest

from kinesis_efo.errors import ConfigurationError, UsageError
from kinesis_efo.options import AwsSettings
from kinesis_efo.units import NoZoneError
from kinesis_efo_tools.cli.arguments import aws_settings, load
from kinesis_efo_tools.cli.extras import needed_by
from kinesis_efo_tools.cli.lag import lag
from kinesis_efo_tools.cli.lease_access import start_position
from kinesis_efo_tools.cli.local_process import Ready
from kinesis_efo_tools.cli.measuring_options import Measuring, measuring
from kinesis_efo_tools.cli.times import at_or_ago, check_unit
from tests.support.messages import raises
from tests.unit.test_manifest import CONSUMER, STREAM, document


def test_wrong_value_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with raises(UsageError, "--external-id goes with --role-arn: give both"):
        aws_settings(external_id="x")
    with raises(UsageError, "--region must be a region such as eu-west-1; got 'not one'"):
        aws_settings(region="not one")
    with raises(UsageError, "--endpoint-url must be a URL such as http://127.0.0.1:4566; got 'nonsense'"):
        aws_settings(endpoint_url="nonsense")
    with raises(UsageError, "--interval: 2 of what? Say 2s, 2m or 2ms; got '2'"):
        check_unit("--interval", "2")
    with raises(UsageError, "--to AFTER is a position inside one shard: select it with --shard"):
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
    file = tmp_path / "lake.json"
    file.write_text(json.dumps(document()))
    with raises(UsageError, "--stream names 'order', but the manifest .../lake.json has 'orders'"):
        load(str(file), AwsSettings(), ["order"])


def test_measuring_needs_its_option() -> None:
    said = {"duration": "2s", "take_over": False, "lease_timeout": "1m"}
    assert measuring(subscribe=False, **said) is None  # type: ignore[arg-type]
    assert measuring(subscribe=True, **said) == Measuring(2.0, False, 60.0)  # type: ignore[arg-type]
    with raises(UsageError, "--take-over goes with --subscribe: give both"):
        measuring(subscribe=False, take_over=True)
    with raises(UsageError, "--for must be a duration such as 10s; got 'soon'"):
        measuring(subscribe=True, duration="soon")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2024-01-01T00:00:00Z", 1_704_067_200_000),
        ("2024-01-01T00:00:00+01:00", 1_704_063_600_000),
        ("1704067200000", 1_704_067_200_000),
        ("now", 100_000),
        ("10s", 90_000),
    ],
)
def test_times_and_durations_are_read(text: str, milliseconds: int) -> None:
    assert at_or_ago(text, 100.0) == milliseconds


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "AT_TIMESTAMP:1", "1795699946.480", "1795699946480123"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the text differs)
        at_or_ago(text, 0.0)
    with pytest.raises(NoZoneError, match="as 2024-01-01T09:00:00Z does for UTC"):
        at_or_ago("2024-01-01 09:00", 0.0)


@pytest.mark.parametrize("arn", [STREAM, CONSUMER])
def test_run_of_another_host_is_not_found(arn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with raises(
        ConfigurationError,
        f"no run of this user on this host reads with {arn} and without a lease table; run this on the driver's host, or give the query "
        "kinesis-efo option 'leaseTable' or a manifest",
    ):
        lag(arn)
