"""Defines patterns that validate stream names and ARNs, and the identity of a stream (its ARN and creation time)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

_NAME: Final = "[a-zA-Z0-9_.-]{1,128}"
# Avoid \w and \d: the JSON schema of manifests also contains these patterns, and other languages define \w and \d differently.
_WORD: Final = "[a-zA-Z0-9_-]+"
_ACCOUNT: Final = "[0-9]{12}"

STREAM_NAME: Final = re.compile(_NAME)
"""Pattern for Kinesis stream names (API reference, CreateStream)."""

STREAM_ARN: Final = re.compile(
    rf"arn:(?P<partition>{_WORD}):kinesis:(?P<region>{_WORD}):(?P<account>{_ACCOUNT}):stream/(?P<name>{_NAME})"
)
CONSUMER_ARN: Final = re.compile(
    rf"(?P<stream>arn:{_WORD}:kinesis:{_WORD}:{_ACCOUNT}:stream/{_NAME})/consumer/(?P<name>{_NAME}):[0-9]+"
)
ROLE_ARN: Final = re.compile(rf"arn:{_WORD}:iam::{_ACCOUNT}:role/\S+")


class StreamIdentity(NamedTuple):
    """The ARN and creation time of a stream. If a stream is deleted and created again, only the creation time changes.

    >>> print(StreamIdentity("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", 1700000000))
    arn:aws:kinesis:eu-west-1:123456789012:stream/orders, created 2023-11-14T22:13:20+00:00
    """

    arn: str
    created: int | None = None  # Epoch seconds; None if unknown

    def differs(self, other: StreamIdentity) -> bool:
        """Whether `other` is a different stream: the ARNs differ, or both creation times are known and differ."""
        known = self.created is not None and other.created is not None
        return self.arn != other.arn or (known and self.created != other.created)

    def __str__(self) -> str:
        if self.created is None:
            return self.arn
        return f"{self.arn}, created {datetime.fromtimestamp(self.created, UTC).isoformat()}"
