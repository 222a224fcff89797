"""CBOR, which the Java SDK speaks to Kinesis: the values of JSON, with blobs as bytes and times as milliseconds.

Requests are converted to JSON before the server reads them, responses and events to CBOR after the server has written them.
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
"""The tag of a time. Its unit is the second in RFC 8949, and the millisecond for AWS."""


def to_json(body: bytes) -> bytes:
    """A request in CBOR as JSON, with blobs in base64 and times in seconds.

    Raises AwsError `SerializationException` if it is not CBOR.
    """
    # Not at the top: the command line must load without the extra `local`, which installs cbor2.
    import cbor2

    try:
        value = cbor2.loads(body, semantic_decoders={_TIME: lambda millis, _immutable: millis / 1000}) if body else {}
        return msgspec.json.encode(value)
    except (cbor2.CBORError, TypeError, ValueError) as wrong:
        raise AwsError("SerializationException", f"The request is not valid CBOR: {wrong}") from None


def from_json(operation: str, content: bytes) -> bytes:
    """The JSON of an operation's response as CBOR. `content` may be empty."""
    output = model()["operations"].get(operation, {}).get("output")
    return encode(msgspec.json.decode(content), output and output["shape"]) if content else b""


def encode(value: Any, shape: str | None = None) -> bytes:
    """Values of JSON as CBOR.

    `shape` is the name of their shape in botocore's service model; None for texts and numbers alone.
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
