"""Checks that each role has a permissions boundary, and no AWS managed policy that may allow registering stream consumers."""

from __future__ import annotations

import re
from typing import Any

from checkov.common.models.enums import CheckCategories, CheckResult
from checkov.terraform.checks.resource.base_resource_check import BaseResourceCheck

# The path of the pipeline's own roles, which only an administrator creates.
_PIPELINE = re.compile(r"/(kinesis-efo|[a-z][a-z0-9]{0,15})-pipeline/")
_OF_AWS = re.compile(r"arn:aws[a-z-]*:iam::aws:policy/(?P<name>.+)")
# AWS managed policies that may be attached. They must be unrelated to Kinesis: AWS may change them, and no plan contains their statements.
_KNOWN = (
    "AWSXRayDaemonWriteAccess",
    "AmazonEC2ContainerRegistryReadOnly",
    "AmazonS3FullAccess",
    "AmazonS3ReadOnlyAccess",
    "AmazonSSMManagedInstanceCore",
    "CloudWatchAgentServerPolicy",
)


def _values(conf: dict[str, Any], attribute: str) -> list[Any]:
    """Return the values of an attribute as a flat list: checkov wraps values in lists."""
    found = conf.get(attribute) or []
    return [inner for each in found for inner in (each if isinstance(each, list) else [each]) if inner]


def _unknown_of_aws(arns: list[Any]) -> bool:
    named = [_OF_AWS.fullmatch(str(each)) for each in arns]
    return any(each is not None and each["name"] not in _KNOWN for each in named)


class RoleWithBoundary(BaseResourceCheck):  # type: ignore[misc]
    """Requires a permissions boundary, which limits all policies that are ever attached to a role."""

    def __init__(self) -> None:
        super().__init__(
            name="Ensure that a role has a permissions boundary, which keeps it from registering stream consumers",
            id="CKV_EFO_7",
            categories=[CheckCategories.IAM],
            supported_resources=["aws_iam_role"],
        )

    def scan_resource_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check for a boundary. The pipeline's own roles, which register declared consumers, do not need one.

        This check accepts any boundary; `kinesis_efo_infra.gate.granted` verifies that the settings allow it.
        """
        of_pipeline = any(_PIPELINE.fullmatch(str(each)) for each in _values(conf, "path"))
        bounded = _values(conf, "permissions_boundary") or of_pipeline
        return CheckResult.PASSED if bounded else CheckResult.FAILED


class NoUnknownPolicyOfAws(BaseResourceCheck):  # type: ignore[misc]
    """Rejects AWS managed policies, such as AmazonKinesisFullAccess, except for a few that are unrelated to Kinesis."""

    def __init__(self) -> None:
        super().__init__(
            name="Ensure that no managed policy of AWS is attached that may allow registering stream consumers",
            id="CKV_EFO_8",
            categories=[CheckCategories.IAM],
            supported_resources=[
                "aws_iam_group_policy_attachment",
                "aws_iam_policy_attachment",
                "aws_iam_role",
                "aws_iam_role_policy_attachment",
                "aws_iam_role_policy_attachments_exclusive",
                "aws_iam_user_policy_attachment",
            ],
        )

    def scan_resource_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check the ARNs of AWS managed policies. Customer managed policies are accepted: the role's boundary limits them."""
        named = ("policy_arn", "policy_arns", "managed_policy_arns")
        failed = _unknown_of_aws([arn for attribute in named for arn in _values(conf, attribute)])
        return CheckResult.FAILED if failed else CheckResult.PASSED


boundary = RoleWithBoundary()
attachments = NoUnknownPolicyOfAws()
