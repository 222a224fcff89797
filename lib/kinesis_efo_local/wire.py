"""Encodes the frames of event streams.

The format is AWS's `application/vnd.amazon.eventstream`: a prelude of total and header length with its CRC, headers, payload, CRC.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping

import msgspec

from .cbor import CBOR, encode
from .errors import AwsError

EVENT_STREAM = "application/vnd.amazon.eventstream"
_JSON = "application/json"
_STRING = 7


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode the headers of a frame; all values are strings."""
    parts = []
    for name, value in headers.items():
        raw_name, raw_value = name.encode(), value.encode()
        parts.append(struct.pack(f"!B{len(raw_name)}sBH", len(raw_name), raw_name, _STRING, len(raw_value)) + raw_value)
    return b"".join(parts)


def encode_frame(headers: bytes, payload: bytes) -> bytes:
    """Encode a frame from encoded headers and a payload."""
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    prelude += struct.pack("!I", zlib.crc32(prelude))
    crc = zlib.crc32(payload, zlib.crc32(headers, zlib.crc32(prelude)))
    return b"".join((prelude, headers, payload, struct.pack("!I", crc)))


def _event_headers(kind: str, content_type: str) -> bytes:
    return encode_headers({":event-type": kind, ":content-type": content_type, ":message-type": "event"})


_EVENT_HEADERS, _CBOR_EVENT_HEADERS = (_event_headers("SubscribeToShardEvent", each) for each in (_JSON, CBOR))
INITIAL_RESPONSE = encode_frame(_event_headers("initial-response", _JSON), b"{}")
_CBOR_INITIAL_RESPONSE = encode_frame(_event_headers("initial-response", CBOR), b"\xa0")  # an empty CBOR map


def event_payload(
    records: Iterable[bytes], continuation: str | None, behind_millis: int, children: object = None
) -> bytes:
    """The JSON of a SubscribeToShardEvent, with the fields in the real service's order.

    `continuation` is the sequence number to continue from. At the end of the shard it is None, or an empty string, as some servers send.
    `children` are the child shards as JSON values, only at the end of the shard.
    """
    number = b"null" if continuation is None else b'"%b"' % continuation.encode()
    child_shards = b"" if children is None else b',"ChildShards":' + msgspec.json.encode(children)
    return b'{"ContinuationSequenceNumber":%b,"MillisBehindLatest":%d,"Records":[%b]%b}' % (
        number,
        behind_millis,
        b",".join(records),
        child_shards,
    )


def initial_response(*, cbor: bool) -> bytes:
    """The frame before the first event."""
    return _CBOR_INITIAL_RESPONSE if cbor else INITIAL_RESPONSE


def event_frame(payload: bytes, *, cbor: bool = False) -> bytes:
    """The frame of a SubscribeToShardEvent, from its JSON."""
    if cbor:
        return encode_frame(_CBOR_EVENT_HEADERS, encode(msgspec.json.decode(payload), "SubscribeToShardEvent"))
    return encode_frame(_EVENT_HEADERS, payload)


def exception_frame(error: AwsError, *, cbor: bool = False) -> bytes:
    """The frame of an exception inside the event stream."""
    content_type, encoded = (CBOR, encode) if cbor else (_JSON, msgspec.json.encode)
    headers = {":exception-type": error.code, ":content-type": content_type, ":message-type": "exception"}
    return encode_frame(encode_headers(headers), encoded({"message": error.message}))
