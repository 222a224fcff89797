"""Checks that no policy allows registering or deregistering stream consumers: that is Terraform's job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from checkov.common.models.enums import CheckCategories, CheckResult
from checkov.terraform.checks.data.base_check import BaseDataCheck
from checkov.terraform.checks.resource.base_resource_check import BaseResourceCheck

_ACTIONS = ("kinesis:registerstreamconsumer", "kinesis:deregisterstreamconsumer")
_NAME = "Ensure that no statement allows registering or deregistering stream consumers"


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif value is not None:
        yield str(value)


def _allows(effect: Any, actions: Any, not_actions: Any) -> bool:
    if next(_flat(effect), "Allow") != "Allow":
        return False
    named = [action.lower() for action in _flat(actions)]
    excepted = [action.lower() for action in _flat(not_actions)]
    for action in _ACTIONS:
        if any(fnmatchcase(action, pattern) for pattern in named):
            return True
        if excepted and not any(fnmatchcase(action, pattern) for pattern in excepted):
            return True
    return False


class NoRegistrationInDocument(BaseDataCheck):  # type: ignore[misc]
    """Checks policies in Terraform data sources, as this project writes them."""

    def __init__(self) -> None:
        super().__init__(
            name=_NAME,
            id="CKV_EFO_1",
            categories=[CheckCategories.IAM],
            supported_data=["aws_iam_policy_document"],
        )

    def scan_data_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check every statement."""
        for statement in conf.get("statement", []):
            if isinstance(statement, dict) and _allows(
                statement.get("effect"), statement.get("actions"), statement.get("not_actions")
            ):
                return CheckResult.FAILED
        return CheckResult.PASSED


class NoRegistrationInPolicy(BaseResourceCheck):  # type: ignore[misc]
    """Checks policies in JSON text: literal ones in the configuration, all of them in a plan."""

    def __init__(self) -> None:
        super().__init__(
            name=_NAME,
            id="CKV_EFO_2",
            categories=[CheckCategories.IAM],
            supported_resources=[
                "aws_iam_policy",
                "aws_iam_role_policy",
                "aws_iam_user_policy",
                "aws_iam_group_policy",
            ],
        )

    def scan_resource_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check every statement of the document, where its text is known."""
        for policy in conf.get("policy", []):
            try:
                document = policy if isinstance(policy, dict) else json.loads(policy)
            except (TypeError, ValueError):
                continue  # a reference: CKV_EFO_1 sees the document it refers to
            if not isinstance(document, dict):
                continue
            written = document.get("Statement", [])
            for statement in written if isinstance(written, list) else [written]:
                if _allows(statement.get("Effect"), statement.get("Action"), statement.get("NotAction")):
                    return CheckResult.FAILED
        return CheckResult.PASSED


documents = NoRegistrationInDocument()
policies = NoRegistrationInPolicy()
