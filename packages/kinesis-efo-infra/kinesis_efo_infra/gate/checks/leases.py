"""Checks that each DynamoDB table has the key of a lease table, which the library and KCL expect."""

from __future__ import annotations

from typing import Any

from checkov.common.models.enums import CheckCategories, CheckResult
from checkov.terraform.checks.resource.base_resource_check import BaseResourceCheck


class LeaseKeySchema(BaseResourceCheck):  # type: ignore[misc]
    """Requires the partition key `leaseKey`, a string, and no sort key."""

    def __init__(self) -> None:
        super().__init__(
            name="Ensure that a lease table has the partition key leaseKey of type S and no sort key",
            id="CKV_EFO_3",
            categories=[CheckCategories.GENERAL_SECURITY],
            supported_resources=["aws_dynamodb_table"],
        )

    def scan_resource_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check the table's key schema."""
        if conf.get("hash_key") != ["leaseKey"] or (conf.get("range_key") or [None]) != [None]:
            return CheckResult.FAILED
        for attribute in conf.get("attribute", []):
            if isinstance(attribute, dict) and attribute.get("name") == ["leaseKey"] and attribute.get("type") == ["S"]:
                return CheckResult.PASSED
        return CheckResult.FAILED


check = LeaseKeySchema()
