"""A synthesized stack of any app is applied to a local AWS that runs; its directory stays as it is."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from infra.settings.model import Environment
from infra.stacks.app import synthesize
from kinesis_efo_infra.pipeline.__main__ import main
from kinesis_efo_infra.pipeline.local import override
from kinesis_efo_local import LocalAws, Settings

STACK = "kinesis-efo-test"


@pytest.fixture
def synthesized(declare: Callable[..., Environment], tmp_path: Path) -> Path:
    return synthesize([declare()], tmp_path, outdir=tmp_path / "out")


def test_applied_stack_keeps_its_directory(
    synthesized: Path, provider: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TF_REATTACH_PROVIDERS", provider["TF_REATTACH_PROVIDERS"])
    stack = synthesized / "stacks" / STACK
    before = {path: path.read_bytes() for path in stack.rglob("*") if path.is_file()}
    with LocalAws(settings=Settings(region="eu-west-1", account_id="111122223333")) as aws:
        arguments = ["apply-local", STACK, "--synthesized", str(synthesized), "--endpoint", aws.endpoint_url]
        with caplog.at_level(logging.INFO):
            assert main(arguments) == 0
        assert aws.client("kinesis").list_streams()["StreamNames"] == ["test-orders"]
        assert aws.client("dynamodb").list_tables()["TableNames"] == ["kinesis-efo-test-lake"]
    assert f"{STACK}: applied, " in caplog.text
    assert {path: path.read_bytes() for path in stack.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--endpoint", "https://kinesis.eu-west-1.amazonaws.com"], "must be local AWS (127.0.0.1, "),
        (["--synthesized", "nowhere"], "there is no cdk.tf.json: synthesize the stack first"),
    ],
)
def test_other_endpoints_and_missing_stacks_are_refused(
    given: list[str], says: str, synthesized: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["apply-local", STACK, "--synthesized", str(synthesized), *given]) == 1
    assert says in caplog.text


def test_every_provider_uses_local_aws() -> None:
    blocks = [{"region": "eu-west-1"}, {"alias": "north", "region": "eu-north-1"}]
    written = override({"provider": {"aws": blocks, "random": [{}]}}, "http://127.0.0.1:1")["provider"]["aws"]
    assert [each.get("alias") for each in written] == [None, "north"]
    assert {each["endpoints"][0]["kinesis"] for each in written} == {"http://127.0.0.1:1"}
    assert len(override({"provider": {"aws": blocks[0]}}, "http://127.0.0.1:1")["provider"]["aws"]) == 1
