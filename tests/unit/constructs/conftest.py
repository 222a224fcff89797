"""A stack of somebody's own app, and what it becomes in Terraform."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinesis_efo_infra
from kinesis_efo_infra.cdk import TerraformStack
from tests.unit.infra.conftest import read_stack

# isort: split

from cdktf import App
from cdktf_cdktf_provider_aws.provider import AwsProvider

Synth = Callable[[], dict[str, Any]]


def evaluated(text: str, stack: TerraformStack, names: dict[str, Any]) -> Any:
    """An expression that may use all public names, others that are given, and the scope `s`."""
    public = {name: getattr(kinesis_efo_infra, name) for name in kinesis_efo_infra.__all__}
    return eval(text, {**public, **names, "s": stack})


@pytest.fixture
def stack(tmp_path: Path) -> TerraformStack:
    """A stack without an environment file, an account or a region."""
    return TerraformStack(App(outdir=str(tmp_path)), "streaming")


@pytest.fixture
def synth(stack: TerraformStack, tmp_path: Path) -> Synth:
    """The Terraform JSON of the stack, without metadata."""

    def synthesizer() -> dict[str, Any]:
        AwsProvider(stack, "aws")
        app = stack.node.root
        assert isinstance(app, App)
        app.synth()
        return read_stack(tmp_path / "stacks" / "streaming")

    return synthesizer
