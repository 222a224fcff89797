"""Whatever the state names, no provider but that of AWS is run: not by planning, by applying, nor by an administrator's bootstrap."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from infra.errors import PipelineError
from infra.pipeline.apply_bootstrap import apply_bootstrap
from infra.settings.names import Names
from infra.stacks.app import synthesize_bootstrap
from kinesis_efo_infra.gate.allowed import in_state
from kinesis_efo_infra.pipeline.terraform import LOCK_FILE, PLATFORMS, Terraform
from kinesis_efo_local import LocalAws
from tests.integration.pipeline.conftest import Checkout
from tests.support.commands import program

EVIL = "registry.terraform.io/acme/planted"
AWS = 'provider["registry.terraform.io/hashicorp/aws"]'


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A planted provider, where Terraform looks for providers first; it writes this file when it is run."""
    home, ran = tmp_path / "home", tmp_path / "ran"
    binary = home / ".terraform.d" / "plugins" / EVIL / "1.0.0" / "linux_amd64" / "terraform-provider-planted_v1.0.0"
    program(binary, f"env > {ran}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("TF_CLI_CONFIG_FILE", raising=False)
    return ran


def state(provider: str = f'provider["{EVIL}"]', **others: Any) -> str:
    resource: dict[str, Any] = {"mode": "managed", "type": "planted", "name": "x", "provider": provider}
    resource["instances"] = [{"schema_version": 0, "attributes": {"id": "x"}}]
    head = {"version": 4, "terraform_version": "1.11.4", "serial": 1, "lineage": "x", "outputs": {}}
    return json.dumps({**head, "resources": [resource], **others})


def mirrored(directory: Path) -> None:
    """Set up a source of providers of one's own."""
    source = f'  filesystem_mirror {{\n    path = "{directory}"\n  }}\n'
    (Path.home() / ".terraformrc").write_text(f"provider_installation {{\n{source}}}\n", encoding="utf-8")


PLANTED = json.loads(state())["resources"]


def plant(aws: LocalAws, key: str, text: str) -> None:
    aws.client("s3").put_object(Bucket="terraform-state", Key=key, Body=text.encode())


@pytest.mark.long
def test_provider_named_by_the_state_is_not_run(aws: LocalAws, checkout: Checkout, ran: Path, tmp_path: Path) -> None:
    repository = checkout("planted")
    repository.plan("one")
    plant(aws, repository.deployment.state_key, state())
    named = rf"(?s)the state of kinesis-efo-planted holds .*; nothing was run:\n  planted\.x: .* not provider\[\"{EVIL}"
    with pytest.raises(PipelineError, match=named):
        repository.plan("one", tmp_path / "again")
    with pytest.raises(PipelineError, match=named):
        repository.apply("one")
    assert not ran.exists()


@pytest.mark.long
def test_provider_that_enters_the_state_later_is_not_run(aws: LocalAws, checkout: Checkout, ran: Path) -> None:
    repository = checkout("late")
    deployment = repository.deployment

    class Late(Terraform):
        def init(self, *, reconfigure: bool = False, migrate: bool = False) -> None:
            plant(aws, deployment.state_key, state())
            super().init(reconfigure=reconfigure, migrate=migrate)

    class Unlocked(Late):
        def init(self, *, reconfigure: bool = False, migrate: bool = False) -> None:
            (self._directory / LOCK_FILE).unlink()
            super().init(reconfigure=reconfigure, migrate=migrate)

    def plan(terraform: type[Terraform]) -> str:
        with pytest.raises(PipelineError, match="terraform init failed") as failed:
            repository.planner(terraform=terraform).plan(deployment, "one", repository.plans)
        aws.client("s3").delete_object(Bucket="terraform-state", Key=deployment.state_key)
        return " ".join(str(failed.value).split())

    assert "acme/planted" in plan(Unlocked), "no source that is set up has it"
    # Where somebody has set up a source of his own, the lock file decides.
    mirrored(Path.home() / ".terraform.d" / "plugins")
    assert "lock" in plan(Late)
    assert not ran.exists()


@pytest.mark.long
def test_bootstrap_runs_no_provider_of_its_state(aws: LocalAws, checkout: Checkout, ran: Path) -> None:
    repository = checkout("boot", pipeline=None)
    environment = repository.environment
    plant(aws, Names(environment).bootstrap_state_key, state())
    out = synthesize_bootstrap([environment], repository.directory / "bootstrap")
    s3, iam = aws.client("s3"), aws.client("iam")
    with pytest.raises(PipelineError, match=r"(?s)boot.* is no state of this stack; nothing was run.*planted\.x"):
        apply_bootstrap(environment, out, s3, iam, approve=True)
    assert not ran.exists()


@pytest.mark.long
def test_written_lock_file_allows_one_provider(
    aws: LocalAws, checkout: Checkout, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = checkout("locks")
    document = json.loads(repository.configuration.read_text())
    version = document["terraform"]["required_providers"]["aws"]["version"]
    mirror = Path.home() / ".terraform.d" / "plugins"
    there = mirror / "registry.terraform.io" / "hashicorp" / "aws" / version
    for platform in PLATFORMS:
        binary = program(there / platform / f"terraform-provider-aws_v{version}", f"# of {platform}")
    binary = there / "linux_amd64" / binary.name
    # Its registry is out of reach.
    monkeypatch.setenv("TF_CLI_ARGS_providers_lock", f"-fs-mirror={mirror}")
    repository.planner().lock(repository.deployment)
    written = repository.providers.read_text(encoding="utf-8")
    assert re.findall(r'provider "(.*)"', written) == ["registry.terraform.io/hashicorp/aws"]
    assert re.findall(r'version += "(.*)"', written) == [version]
    assert written.count('"h1:') == len(PLATFORMS)
    monkeypatch.delenv("TF_REATTACH_PROVIDERS")
    mirrored(mirror)
    program(binary, f"env > {ran}")
    with pytest.raises(PipelineError, match="terraform init failed") as failed:
        repository.plan("one")
    assert "match any of the checksums" in " ".join(str(failed.value).split())
    # One that names no provider lets none in.
    repository.providers.write_text("", encoding="utf-8")
    with pytest.raises(PipelineError, match="terraform init failed"):
        repository.plan("one")
    repository.providers.unlink()
    with pytest.raises(PipelineError, match=r"lock\.hcl is missing, .*: `make providers ENV=locks` writes it"):
        repository.plan("one")
    assert not ran.exists()


@pytest.mark.parametrize(
    "text",
    [
        state("provider.planted"),
        state(f'module.x.provider["{EVIL}"]'),
        state('provider["registry.terraform.io/hashicorp/aws2"]'),
        state(AWS, Resources=PLANTED),
        state(AWS, Resources=PLANTED).replace("Resources", "re\\u017fources"),
        state(AWS).replace('"provider"', '"Provider": "provider.x", "provider"'),
        state(AWS, version=3),
        '{"version": 4, "resources": [null]}',
        '{"version": 4, "resources": [{}]}',
        "[]",
        "no state",
    ],
)
def test_hidden_resources_of_a_state_are_found(text: str) -> None:
    assert in_state(text)


def test_state_of_aws_alone_has_no_fault() -> None:
    for provider in ("terraform.io/hashicorp/aws", "opentofu.org/hashicorp/aws"):
        for alias in ("", ".other"):
            assert in_state(state(provider=f'provider["registry.{provider}"]{alias}')) == []
    assert in_state('{"version": 4, "serial": 1}') == []
