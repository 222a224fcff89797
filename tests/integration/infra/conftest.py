"""Real Terraform over synthesized stacks, with a stand-in for the AWS provider."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings import ledger
from infra.settings.load import load_environment
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.app import synthesize
from tests.support.missing import terraform
from tests.support.terraform.harness import Terraform, stand_in
from tests.unit.infra.conftest import HEAD

Deploy = Callable[..., Terraform]


@pytest.fixture(scope="session")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """The stand-in provider, for the whole session."""
    terraform()
    with stand_in(tmp_path_factory.mktemp("provider")) as environment:
        yield environment


def write_environment(directory: Path, **changes: Any) -> Environment:
    """Write an environment file, and its ledger if it is protected, and load it."""
    document = {**HEAD, "streams": {"orders": {}}, "applications": {"lake": {"streams": ["orders"]}}, **changes}
    path = directory / f"{document['environment']}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    environment = load_environment(path)
    if environment.protected:
        ledger.accept(directory, environment)
    return environment


@pytest.fixture
def declare(tmp_path: Path) -> Callable[..., Environment]:
    """Writes an environment file and loads it."""
    return lambda **changes: write_environment(tmp_path, **changes)


@pytest.fixture
def deploy(declare: Callable[..., Environment], provider: Mapping[str, str], tmp_path: Path) -> Deploy:
    """Synthesizes an environment and returns Terraform in its stack, with the state of earlier calls."""

    def deployer(environment: Environment | None = None, /, **changes: Any) -> Terraform:
        chosen = environment or declare(**changes)
        if chosen.protected:
            ledger.accept(tmp_path, chosen)
        out = synthesize([chosen], tmp_path, outdir=tmp_path / "out")
        return Terraform(out / "stacks" / Names(chosen).stack_name, provider)

    return deployer
