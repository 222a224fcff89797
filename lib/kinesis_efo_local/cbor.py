"""Converts between JSON and CBOR, which the Java SDK uses for Kinesis: blobs are bytes, and timestamps are in milliseconds.

Requests are converted to JSON before they are handled; responses and events are converted to CBOR before they are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pybase64

from .errors import AwsError
from .validation import model

CBOR = "application/x-amz-cbor-1.1"
_TIME = 1
"""CBOR tag of a timestamp. Its unit is seconds in RFC 8949, but milliseconds in this AWS format."""


def to_json(body: bytes) -> bytes:
    """Convert a CBOR request to JSON, with blobs in base64 and timestamps in seconds.

    Raises AwsError `SerializationException` if `body` is not valid CBOR.
    """
    # Imported here, so that the command line loads without the extra `local`, which installs cbor2.
    import cbor2

    try:
        value = cbor2.loads(body, semantic_decoders={_TIME: lambda millis, _immutable: millis / 1000}) if body else {}
        return msgspec.json.encode(value)
    except (cbor2.CBORError, TypeError, ValueError) as wrong:
        raise AwsError("SerializationException", f"The request is not valid CBOR: {wrong}") from None


def from_json(operation: str, content: bytes) -> bytes:
    """Convert an operation's response from JSON to CBOR. `content` may be empty."""
    output = model()["operations"].get(operation, {}).get("output")
    return encode(msgspec.json.decode(content), output and output["shape"]) if content else b""


def encode(value: Any, shape: str | None = None) -> bytes:
    """Encode a JSON value as CBOR.

    `shape` is the name of the value's shape in botocore's service model. If it is None, blobs and timestamps are not converted.
    """
    import cbor2

    return cbor2.dumps(_typed(shape, value, lambda millis: cbor2.CBORTag(_TIME, millis)))


def _typed(name: str | None, value: Any, time: Callable[[int], Any]) -> Any:
    shape = model()["shapes"].get(name, {})
    match shape.get("type"):
        case "structure" if value is not None:
            members = shape["members"]
            return {key: _typed(members.get(key, {}).get("shape"), each, time) for key, each in value.items()}
        case "list" if value is not None:
            return [_typed(shape["member"]["shape"], each, time) for each in value]
        case "blob":
            return pybase64.b64decode(value)
        case "timestamp":
            return time(round(value * 1000))
    return value
