"""Checks that each stream consumer belongs to a stream that its stack declares, or to an existing stream that is given by its ARN."""

from __future__ import annotations

import re
from typing import Any

from checkov.common.models.enums import CheckCategories, CheckResult
from checkov.terraform.checks.resource.base_resource_check import BaseResourceCheck

_DECLARED = re.compile(r"(\$\{)?aws_kinesis_stream\.[\w-]+\.arn\}?")
_ADOPTED = re.compile(r"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:\d{12}:stream/[a-zA-Z0-9_.-]+")


class ConsumerOfKnownStream(BaseResourceCheck):  # type: ignore[misc]
    """Requires that `stream_arn` is a literal ARN or a reference to an `aws_kinesis_stream` resource."""

    def __init__(self) -> None:
        super().__init__(
            name="Ensure that a stream consumer belongs to a declared or adopted stream",
            id="CKV_EFO_4",
            categories=[CheckCategories.GENERAL_SECURITY],
            supported_resources=["aws_kinesis_stream_consumer"],
        )

    def scan_resource_conf(self, conf: dict[str, Any]) -> CheckResult:
        """Check the stream's ARN. For a stream that a plan creates, the ARN and therefore the result are unknown."""
        arn = (conf.get("stream_arn") or [None])[0]
        if arn is None and "__address__" in conf:
            return CheckResult.UNKNOWN
        known = isinstance(arn, str) and (_DECLARED.fullmatch(arn) or _ADOPTED.fullmatch(arn))
        return CheckResult.PASSED if known else CheckResult.FAILED


check = ConsumerOfKnownStream()
