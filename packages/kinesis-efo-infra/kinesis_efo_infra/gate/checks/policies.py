"""Checks what policies allow: only Terraform registers stream consumers, and no key, stream or bucket is open to everyone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from checkov.common.models.enums import CheckCategories, CheckResult
from checkov.terraform.checks.data.base_check import BaseDataCheck
from checkov.terraform.checks.resource.base_resource_check import BaseResourceCheck

_ACTIONS = ("kinesis:registerstreamconsumer", "kinesis:deregisterstreamconsumer")
_REGISTRATION = "Ensure that no statement allows registering or deregistering stream consumers"
_OPEN = "Ensure that no statement of a resource's policy allows something to everybody"


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    elif value is not None:
        yield str(value)


def _denies(effect: Any) -> bool:
    return next(_flat(effect), "Allow") != "Allow"


def _registers(effect: Any, actions: Any, not_actions: Any) -> bool:
    if _denies(effect):
        return False
    # Escape brackets, which are ordinary characters in IAM patterns.
    named, excepted = ([each.lower().replace("[", "[[]") for each in _flat(some)] for some in (actions, not_actions))
    for action in _ACTIONS:
        if any(fnmatchcase(action, pattern) for pattern in named):
            return True
        if excepted and not any(fnmatchcase(action, pattern) for pattern in excepted):
            return True
    return False


def _statements(conf: Mapping[str, Any], *attributes: str) -> Iterator[dict[str, Any]]:
    """Yield the statements of JSON policies. References are skipped: the policy documents that they refer to are checked separately."""
    for policy in (each for attribute in attributes for each in conf.get(attribute) or []):
        try:
            document = policy if isinstance(policy, dict) else json.loads(policy)
        except (TypeError, ValueError):
            continue
        if isinstance(document, dict):
            written = document.get("Statement", [])
            yield from (
                each for each in (written if isinstance(written, list) else [written]) if isinstance(each, dict)
            )


def _declared(conf: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (each for each in conf.get("statement", []) if isinstance(each, dict))


def _result(failed: bool) -> CheckResult:
    return CheckResult.FAILED if failed else CheckResult.PASSED


class NoRegistrationInDocument(BaseDataCheck):  # type: ignore[misc]
    """Rejects policy document data sources that allow consumer registration. This project declares its policies with data sources."""

    def __init__(self) -> None:
        super().__init__(
            name=_REGISTRATION,
            id="CKV_EFO_1",
            categories=[CheckCategories.IAM],
            supported_data=["aws_iam_policy_document"],
        )

    def scan_data_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check the actions of every statement."""
        return _result(
            any(
                _registers(each.get("effect"), each.get("actions"), each.get("not_actions")) for each in _declared(conf)
            )
        )


class NoRegistrationInPolicy(BaseResourceCheck):  # type: ignore[misc]
    """Rejects JSON policies that allow consumer registration. In a stack, only literal policies are JSON; in a plan, all policies are."""

    def __init__(self) -> None:
        super().__init__(
            name=_REGISTRATION,
            id="CKV_EFO_2",
            categories=[CheckCategories.IAM],
            supported_resources=[
                "aws_iam_policy",
                "aws_iam_role_policy",
                "aws_iam_user_policy",
                "aws_iam_group_policy",
                # The resource policy of a stream or consumer may allow registration even to principals without other permissions.
                "aws_kinesis_resource_policy",
            ],
        )

    def scan_resource_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check the actions of every statement, if the policy's JSON is known: literal in a stack, or evaluated in a plan."""
        return _result(
            any(
                _registers(each.get("Effect"), each.get("Action"), each.get("NotAction"))
                for each in _statements(conf, "policy")
            )
        )


class EverybodyInDocument(BaseDataCheck):  # type: ignore[misc]
    """Rejects policy document data sources that give access to everybody."""

    def __init__(self) -> None:
        super().__init__(
            name=_OPEN,
            id="CKV_EFO_5",
            categories=[CheckCategories.IAM],
            supported_data=["aws_iam_policy_document"],
        )

    def scan_data_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check the principals of every statement, even if it has conditions: conditions alone must not restrict who has access."""
        return _result(any(not _denies(each.get("effect")) and self._is_open(each) for each in _declared(conf)))

    @staticmethod
    def _is_open(statement: Mapping[str, Any]) -> bool:
        principals, others = (
            [each for each in statement.get(name) or [] if isinstance(each, dict)]
            for name in ("principals", "not_principals")
        )
        return bool(others) or any("*" in _flat(each.get("identifiers")) for each in principals)


class EverybodyInPolicy(BaseResourceCheck):  # type: ignore[misc]
    """Rejects JSON policies that give access to everybody."""

    def __init__(self) -> None:
        super().__init__(
            name=_OPEN,
            id="CKV_EFO_6",
            categories=[CheckCategories.IAM],
            supported_resources=[
                "aws_kinesis_resource_policy",
                "aws_kms_key",
                "aws_kms_key_policy",
                "aws_s3_bucket_policy",
            ],
        )

    def scan_resource_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check the principals of every statement, if the policy's JSON is known: literal in a stack, or evaluated in a plan."""
        return _result(
            any(not _denies(each.get("Effect")) and self._is_open(each) for each in _statements(conf, "policy"))
        )

    @staticmethod
    def _is_open(statement: Mapping[str, Any]) -> bool:
        principal = statement.get("Principal")
        named = list(principal.values()) if isinstance(principal, dict) else principal
        return "NotPrincipal" in statement or "*" in _flat(named)


documents = NoRegistrationInDocument()
policies = NoRegistrationInPolicy()
open_documents = EverybodyInDocument()
open_policies = EverybodyInPolicy()
