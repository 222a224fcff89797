"""The JSON Schema of manifests. It covers all rules of `parse_manifest`, except those that compare one value with another."""

from __future__ import annotations

import re
from typing import Any, Final

from kinesis_efo.arns import CONSUMER_ARN, STREAM_ARN, STREAM_NAME
from kinesis_efo.manifest import SCHEMA_VERSION


def _text(description: str, form: re.Pattern[str] | None = None) -> dict[str, Any]:
    # Only Python writes named groups as `(?P<name>...)`, so remove the names.
    pattern = {"pattern": f"^{re.sub(r'[(][?]P<[a-z]+>', '(', form.pattern)}$"} if form else {}
    return {"type": "string", "minLength": 1, **pattern, "description": description}


_STREAM: Final = {
    "type": "object",
    "required": ["streamName", "streamArn"],
    "properties": {
        "streamName": _text("the stream's name in Kinesis", STREAM_NAME),
        "streamArn": _text("the stream's ARN, with that name and region", STREAM_ARN),
        "consumerArn": _text("the ARN of the application's consumer of that stream; omitted for polling", CONSUMER_ARN),
    },
}

_TABLE: Final = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": _text("the name of the DynamoDB table, in that region"),
        "arn": {"description": "its ARN, for information only"},
    },
}

SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Manifest of an application of kinesis-efo",
    "description": "What an application reads, and with what. Keys that are not described here are ignored.",
    "type": "object",
    "required": ["schemaVersion", "application", "environment", "region", "leaseTable", "streams"],
    "properties": {
        "schemaVersion": {"const": SCHEMA_VERSION, "description": "the version of the format"},
        "application": _text("the application, as metrics and messages call it"),
        "environment": _text(
            "the environment, for metrics, messages and job names: `prod`, or `lake.prod` with `project: lake` in the environment file"
        ),
        "region": _text("the AWS region of every stream and of the lease table"),
        "leaseTable": {
            "anyOf": [_TABLE, _text("its name alone")],
            "description": "the lease table: an object, or its name alone",
        },
        "streams": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": _STREAM,
            "description": "the streams, keyed by the logical names used in options, offsets and rows",
        },
    },
}
"""The JSON Schema of manifests, as a dictionary."""
