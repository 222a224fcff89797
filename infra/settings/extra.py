"""A team's own resources, which `extra.py` beside the environment files declares."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import Fault, SettingsError
from infra.settings.model import Environment
from kinesis_efo_infra.gate.extra import FILE, types
from kinesis_efo_infra.gate.files import shown

if TYPE_CHECKING:
    from infra.stacks.cdk import TerraformStack


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a stack to which the resources in `extra.py` may refer.

    Attributes:
        streams: The construct of each stream, by key.
        policies: ARN of each application's policy, by key.
        roles: ARN of each application's role, by key; applications without a role are omitted.
        key_arn: ARN of the customer key of lease tables and manifests.
    """

    streams: Mapping[str, Any]
    policies: Mapping[str, str]
    roles: Mapping[str, str]
    key_arn: str


def build(directory: Path, stack: TerraformStack, environment: Environment, parts: Parts) -> None:
    """Declare the resources of `extra.py` in a stack, if this file exists.

    Args:
        directory: Directory of the environment files.
        stack: The stack of the environment, which has all other resources.
        environment: The environment.
        parts: Parts of the stack, for references.

    Raises:
        SettingsError: The file cannot be loaded, or has no function `extra`.
    """
    path = directory / FILE
    if not path.exists():
        return
    types(directory)
    specification = importlib.util.spec_from_file_location("kinesis_efo_extra", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    declare = getattr(module, "extra", None)
    if not callable(declare):
        rule = (
            "is missing: def extra(stack, environment, parts): ... declares what is to be in each environment's stack"
        )
        raise SettingsError([Fault("extra", None, rule, shown(path))])
    declare(stack, environment, parts)
