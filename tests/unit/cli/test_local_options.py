"""What `kinesis-efo local` is told: settings, streams, manifests."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from kinesis_efo.errors import ConfigurationError
from kinesis_efo_tools.cli.local_options import merged, parse_settings, parse_streams, wanted, write_manifest
from tests.support.messages import raises
from tests.unit.test_manifest import STREAM, document


def manifest(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(document(**changes)))
    return path


@pytest.mark.parametrize(
    ("value", "texts"), [(False, "false False FALSE 0 no No off f n"), (True, "true True TRUE 1 yes on t y")]
)
def test_true_and_false_have_many_spellings(value: bool, texts: str) -> None:
    for text in (*texts.split(), f" {value} "):
        assert parse_settings([f"read-limit={text}"]) == {"read_limit": value}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("read_limit=maybe", "setting read_limit must be true or false; got 'maybe'"),
        ("max_shards=1.5", "setting max_shards must be a whole number; got '1.5'"),
        ("subscription_seconds=soon", "setting subscription_seconds must be a number; got 'soon'"),
        ("retention_seconds=nan", "setting retention_seconds must be a number; got 'nan'"),
        ("read_limits=1", "'read_limits=1' is not a setting; write NAME=VALUE with one of: account_id, "),
    ],
)
def test_wrong_settings_are_refused(pair: str, message: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"^{message.replace('(', '[(]')}"):
        parse_settings([pair])
    with pytest.raises(typer.BadParameter, match="max_shards must be more than 0; got 0"):
        merged(None, parse_settings(["max_shards=0"]), None)


@pytest.mark.parametrize(
    "text", ["flights:0", "flights:-1", "flights:", "flights:two", ":2", "", "a b", "a:1:2", "a:²"]
)
def test_wrong_streams_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--stream must be NAME or NAME:SHARDS"):
        parse_streams([text])
    with pytest.raises(typer.BadParameter, match="'a' twice"):
        parse_streams(["a:1", "a:2"])


def test_options_need_streams() -> None:
    for app, out in (("lake", None), (None, Path("out.json"))):
        with pytest.raises(typer.BadParameter, match="go with --stream"):
            wanted([], app, None, out)
    assert wanted([], None, None, None) is None
    assert merged(None, {}, None).region == "us-east-1"
    asked = wanted(["flights:2"], "lake", None, None)
    assert (asked.manifest, asked.names) == (Path("lake-local.json"), ["flights"])


def test_foreign_manifest_is_not_overwritten(tmp_path: Path) -> None:
    out = manifest(tmp_path / "prod.json")
    before = out.read_text()
    with raises(
        ConfigurationError,
        f"{out} is not a manifest that `kinesis-efo local` wrote, so it is not overwritten; name another "
        "file with --manifest-out",
    ):
        wanted(["flights"], "lake", None, out)
    assert out.read_text() == before
    assert wanted(["flights"], "lake", None, manifest(tmp_path / "ours.json", environment="local")) is not None


def test_two_streams_of_one_name_are_refused(tmp_path: Path) -> None:
    other = STREAM.replace("123456789012", "444455556666")
    streams = {
        name: {"streamName": "dev-orders", "streamArn": arn, "consumerArn": f"{arn}/consumer/lake:1"}
        for name, arn in (("a", STREAM), ("b", other))
    }
    with raises(
        ConfigurationError,
        f"manifest {tmp_path / 'prod.json'}: streams 'a' and 'b' are both called dev-orders, in different accounts; the "
        "local AWS is one account: leave one of them out",
    ):
        wanted([], None, manifest(tmp_path / "prod.json", streams=streams), None)


def test_changed_manifest_gets_a_new_version(tmp_path: Path) -> None:
    given = manifest(tmp_path / "prod.json")
    before = given.read_text()
    asked = wanted([], None, given, None)
    entry = json.loads(before)["streams"]["orders"]
    assert write_manifest(asked, {"environment": "local", "streams": {"orders": entry}}) == given
    assert not asked.rewritten(given)
    changed = {"environment": "local", "streams": {"orders": {**entry, "consumerArn": "another"}}}
    written = write_manifest(asked, changed)
    assert (written, json.loads(written.read_text())) == (tmp_path / "prod-local.json", changed)
    assert asked.rewritten(written)
    assert given.read_text() == before
