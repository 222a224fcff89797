"""Resource types that a team adds to the allowlist, in `extra.py` next to its environment files.

The file is parsed but not run: the steps that decide what may be applied do not run a team's code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinesis_efo_infra.errors import Fault, SettingsError
from kinesis_efo_infra.gate.files import shown

FILE = "extra.py"
CHECKS = "checks"
"""Directory of the team's checkov checks, beside the environment files."""
_NAME = "TYPES"
_TYPE = re.compile(r"aws_[a-z0-9_]+")
_NEVER = (
    "aws_cloudcontrolapi_resource",
    "aws_cloudformation_stack",
    "aws_cloudformation_stack_instances",
    "aws_cloudformation_stack_set",
    "aws_iam_access_key",
    "aws_iam_service_specific_credential",
    "aws_iam_user_login_profile",
    "aws_lambda_invocation",
    "aws_servicecatalog_provisioned_product",
    "aws_ssm_association",
)
"""Types that cannot be added: they issue access keys, run commands, or create resources from a template, which is not checked."""


def types(directory: Path) -> frozenset[str]:
    """Return the resource types that `extra.py` adds to the allowlist; empty if there is no such file.

    Args:
        directory: Directory of the environment files.

    Raises:
        SettingsError: The file cannot be read, does not list types, or lists one that can never be added.
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
            rule = "can never be added: it hands out keys, runs commands, or makes resources that nobody looks at"
            yield Fault(_NAME, each, rule, place)
