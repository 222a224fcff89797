"""Validates the arguments of constructs. Most checks accept CDKTF tokens, because their values are unknown until Terraform runs."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from kinesis_efo_infra.errors import ArgumentError

_KINESIS_NAME: Final = r"[a-zA-Z0-9_.-]{1,128}"
_STREAM_ARN: Final = rf"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:\d{{12}}:stream/{_KINESIS_NAME}"

KINESIS_NAME: Final = re.compile(_KINESIS_NAME)
"""Pattern for the name of a stream or consumer. Source: Kinesis API reference, CreateStream and RegisterStreamConsumer."""
STREAM_ARN: Final = re.compile(_STREAM_ARN)
CONSUMER_ARN: Final = re.compile(rf"{_STREAM_ARN}/consumer/{_KINESIS_NAME}:\d+")
KEY_ARN: Final = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[a-zA-Z0-9-]+")
OIDC_ARN: Final = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:oidc-provider/[\w./-]+", re.ASCII)
TABLE_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
"""Pattern for the name of a DynamoDB table. Source: DynamoDB API reference, CreateTable."""
PARAMETER_NAME: Final = re.compile(r"(/[a-zA-Z0-9_.-]+){1,15}")
"""Pattern for the full name of a parameter, with its hierarchy. Source: Systems Manager API reference, PutParameter."""
BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
"""Pattern for the name of an S3 bucket. Source: Amazon S3 user guide, bucket naming rules."""
ROLE_NAME: Final = re.compile(r"[\w+=,.@-]{1,64}", re.ASCII)
"""Pattern for the name of an IAM role. Source: IAM API reference, CreateRole."""
ROLE_ARN: Final = re.compile(rf"arn:aws[a-z-]*:iam::(\d{{12}}):role/(?:.+/)?({ROLE_NAME.pattern})", re.ASCII)
PRINCIPAL_ARN: Final = re.compile(r"arn:aws[a-z-]*:(iam|sts)::\d{12}:[\w+=,.@/-]+", re.ASCII)
POLICY_NAME: Final = re.compile(r"[\w+=,.@-]{1,128}", re.ASCII)
"""Pattern for the name of a managed policy. Source: IAM API reference, CreatePolicy."""
PART_OF_NAMES: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Pattern for the name of an application or environment, which becomes part of the names of a table, parameter, policy and role."""

_NUMBER_TOKEN: Final = -1e288
"""CDKTF represents a number that is unknown until Terraform runs as a float below this value."""


def is_token(value: object) -> bool:
    """Whether a value is a CDKTF token: a placeholder for a value that is unknown until Terraform runs.

    >>> is_token("${aws_kinesis_stream.orders.arn}"), is_token("orders")
    (True, False)
    """
    return (isinstance(value, str) and "${" in value) or (isinstance(value, float) and value < _NUMBER_TOKEN)


def text(owner: str, argument: str, value: str, form: re.Pattern[str], remedy: str) -> str:
    """Return `value` if it is a token or matches `form`.

    Raises:
        ArgumentError: `value` does not match. The message begins with `owner` (a construct) and `argument`, and ends with `remedy`.
    """
    if not isinstance(value, str) or not (is_token(value) or form.fullmatch(value)):
        raise ArgumentError(f"{owner}: {argument} must match {form.pattern}; got {value!r}: {remedy}")
    return value


def number(owner: str, argument: str, value: float, lowest: int, highest: int, remedy: str) -> float:
    """Return `value` if it is a token or a whole number from `lowest` to `highest`.

    Raises:
        ArgumentError: `value` is not such a number. The message begins with `owner` (a construct) and `argument`, and ends with `remedy`.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_token(value) or (whole and lowest <= value <= highest)):
        raise ArgumentError(
            f"{owner}: {argument} must be a whole number from {lowest} to {highest}; got {value!r}: {remedy}"
        )
    return value


def one_of(owner: str, argument: str, value: str, known: Collection[str], remedy: str) -> str:
    """Return `value` if it is in `known`.

    Raises:
        ArgumentError: `value` is not in `known`. The message begins with `owner` (a construct) and `argument`, and ends with `remedy`.
    """
    if value not in known:
        raise ArgumentError(f"{owner}: {argument} must be one of {', '.join(known)}; got {value!r}: {remedy}")
    return value
