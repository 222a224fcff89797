"""Names and ARNs as patterns: what options, manifests and the producer accept, and how they take it apart."""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = "[a-zA-Z0-9_.-]{1,128}"

STREAM_NAME: Final = re.compile(_NAME)
"""The name of a stream in Kinesis (API reference, CreateStream)."""

STREAM_ARN: Final = re.compile(
    rf"arn:(?P<partition>[\w-]+):kinesis:(?P<region>[\w-]+):(?P<account>\d{{12}}):stream/(?P<name>{_NAME})"
)
CONSUMER_ARN: Final = re.compile(
    rf"(?P<stream>arn:[\w-]+:kinesis:[\w-]+:\d{{12}}:stream/{_NAME})/consumer/(?P<name>{_NAME}):\d+"
)
ROLE_ARN: Final = re.compile(r"arn:[\w-]+:iam::\d{12}:role/\S+")
