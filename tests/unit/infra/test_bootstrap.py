"""The permissions of a pipeline's roles, and who may assume them."""

import os
from pathlib import Path
from typing import Any

import pytest

from infra.__main__ import main
from infra.errors import SettingsError
from infra.gate.named import named_by_bootstrap_of
from infra.settings.model import Environment
from infra.stacks.app import synthesize_bootstrap
from kinesis_efo_infra.gate import granted
from tests.support.commands import program
from tests.unit.infra.conftest import KEY, Load, Write, read_stack

PIPELINE = "pipeline: {repository: acme/lake, branch: trunk}"
IDS = "pipeline: {repository: acme@12/lake@34, branch: trunk}"


def synthesized(environment: Environment, out: Path) -> dict[str, Any]:
    return read_stack(synthesize_bootstrap([environment], out) / "stacks" / "kinesis-efo-test-bootstrap")


ISSUER = "token.actions.githubusercontent.com"


@pytest.mark.parametrize("issuer", [f"{ISSUER}/acme", "token.actions.acme.ghe.com"])
def test_enterprise_tokens_have_their_issuer(issuer: str, load: Load, tmp_path: Path) -> None:
    environment = load(f"{IDS}, pipeline.issuer: {issuer}")
    stack = synthesized(environment, tmp_path)
    provider = stack["resource"]["aws_iam_openid_connect_provider"]["github"]
    assert provider["url"] == f"https://{issuer}"
    for kind in ("plan", "apply"):
        (statement,) = stack["data"]["aws_iam_policy_document"][f"{kind}_trust"]["statement"]
        # STS knows further claims only for the issuer that all of GitHub shares.
        assert {each["variable"] for each in statement["condition"]} == {f"{issuer}:aud", f"{issuer}:sub"}
    assert granted.in_stack(stack, named_by_bootstrap_of(environment)) == []
    assert granted.in_stack(stack, named_by_bootstrap_of(load(PIPELINE))), "of another issuer"


@pytest.mark.parametrize(
    ("issuer", "host"),
    [(ISSUER, "github.com"), (f"{ISSUER}/acme", "github.com"), ("token.actions.acme.ghe.com", "acme.ghe.com")],
)
def test_bootstrap_asks_the_github_of_the_issuer(
    issuer: str,
    host: str,
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(f"{IDS}, pipeline.issuer: {issuer}", account_id="444455556666")
    program(tmp_path / "gh", 'echo "asked $GH_HOST" >&2; exit 1')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("infra.stacks.app.synthesize_bootstrap", lambda _environments, out: out)
    assert main(["--directory", str(tmp_path), "bootstrap", "test"]) == 1
    assert f"failed: asked {host}. Log in" in caplog.text


def test_only_the_apply_role_may_write(load: Load, tmp_path: Path) -> None:
    attached = synthesized(load(PIPELINE), tmp_path)["resource"]["aws_iam_role_policy_attachment"]
    read, write = ("read", "read_access"), ("change_data", "change_access", "change_keys")
    expected = {f"{role}_{each}": each for role in ("plan", "apply") for each in read}
    expected |= {f"apply_{each}": each for each in write}
    assert {name: each["policy_arn"] for name, each in attached.items()} == {
        name: f"${{aws_iam_policy.{each}.arn}}" for name, each in expected.items()
    }


def test_existing_provider_and_bucket_are_adopted(load: Load, tmp_path: Path) -> None:
    provider = "arn:aws:iam::111122223333:oidc-provider/token.actions.githubusercontent.com"
    stack = synthesized(
        load(f"{PIPELINE}, key: KEY, pipeline.oidc_provider_arn: {provider}, pipeline.adopt_state_bucket: true"),
        tmp_path,
    )
    assert not {"aws_s3_bucket", "aws_kms_key", "aws_iam_openid_connect_provider"} & set(stack["resource"])
    principals = stack["data"]["aws_iam_policy_document"]["apply_trust"]["statement"][0]["principals"]
    assert principals == [{"identifiers": [provider], "type": "Federated"}]
    documents = stack["data"]["aws_iam_policy_document"].values()
    assert KEY in str([each.get("not_resources") for one in documents for each in one["statement"]]), (
        "a given key has no tags"
    )


def test_permissions_too_long_for_policies_are_refused(load: Load, tmp_path: Path) -> None:
    streams = {f"s{n}": {"name": f"{'x' * 100}{n}"} for n in range(20)}
    environment = load(f"{PIPELINE}, applications.lake.streams: [s0]", streams=streams)
    with pytest.raises(SettingsError, match=r"pipeline: what it may do must fit managed policies \(6144 characters\)"):
        synthesize_bootstrap([environment], tmp_path)
