"""What a team adds beside its environment files: `extra.py` with resources of its own, and the types that these have.

The types are read without running the file: the steps that decide what may be applied run nobody's code.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.errors import Fault, SettingsError
from infra.load import shown
from infra.settings import Environment

if TYPE_CHECKING:
    from infra.cdk import TerraformStack

FILE = "extra.py"
CHECKS = "checks"
"""Directory of checks of checkov, beside the environment files."""
_NAME = "TYPES"
_TYPE = re.compile(r"aws_[a-z0-9_]+")
_NEVER = ("aws_iam_access_key", "aws_iam_user_login_profile", "aws_lambda_invocation", "aws_ssm_association")
"""Types that hand out keys, or run commands."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a stack has already, for `extra` to refer to.

    Attributes:
        streams: Each stream's construct, by key.
        policies: ARN of each application's policy, by key.
        roles: ARN of each application's role, by key; none for those without a role.
        key_arn: Customer key of lease tables and manifests.
    """

    streams: Mapping[str, Any]
    policies: Mapping[str, str]
    roles: Mapping[str, str]
    key_arn: str


def types(directory: Path) -> frozenset[str]:
    """Types of resources that `extra.py` adds to those that a stack may have; none without the file.

    Args:
        directory: Directory of the environment files.

    Raises:
        SettingsError: It lists no types, or one that can never be added.
    """
    path = directory / FILE
    if not path.exists():
        return frozenset()
    place = shown(path)
    try:
        found = _literal(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SyntaxError) as error:
        raise SettingsError([Fault("", None, f"cannot be read: {error}", place)]) from None
    if found is None:
        rule = f"is missing: list the types of what the file declares, as {_NAME} = ['aws_sqs_queue']; nothing computed"
        raise SettingsError([Fault(_NAME, None, rule, place)])
    if faults := list(_faults(found, place)):
        raise SettingsError(faults)
    return frozenset(found)


def _literal(tree: ast.Module) -> list[Any] | None:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and [ast.unparse(each) for each in statement.targets] == [_NAME]:
            value = ast.literal_eval(statement.value)
            return list(value) if isinstance(value, list | tuple | set) else None
    return None


def _faults(found: list[Any], place: str) -> Iterator[Fault]:
    for each in found:
        if not isinstance(each, str) or not _TYPE.fullmatch(each):
            yield Fault(
                _NAME, each, "must be a type of the AWS provider, as aws_sqs_queue; no other can be added", place
            )
        elif each in _NEVER:
            yield Fault(_NAME, each, "can never be added: it hands out keys, or runs commands", place)


def build(directory: Path, stack: TerraformStack, environment: Environment, parts: Parts) -> None:
    """Have `extra.py` declare its resources in a stack, if there is the file.

    Args:
        directory: Directory of the environment files.
        stack: The stack of an environment, which is complete but for these.
        environment: The environment.
        parts: What it has.

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
