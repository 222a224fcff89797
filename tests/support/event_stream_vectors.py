"""The frames with which AWS tests its own decoders of event streams: 112 vectors, made here from what their sources say of them.

A source tells what is in a frame, and its checksums. The bytes are ours, so that a byte in a wrong place shows. Sources:

- Ruby, 5 right and 4 wrong ones: `gems/aws-eventstream/spec/fixtures` of https://github.com/aws/aws-sdk-ruby
- Rust, 3 right and 8 wrong ones: `rust-runtime/aws-smithy-eventstream/test_data` of https://github.com/smithy-lang/smithy-rs
- Smithy, 92 events: `smithy-aws-protocol-tests/model/restJson1/event-stream.smithy` of https://github.com/smithy-lang/smithy;
  each of the 21 kinds occurs in several operations
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Final
from uuid import UUID

TRUE, FALSE, BYTE, SHORT, INT, LONG, BLOB, STRING, TIMESTAMP, ID = range(10)
_NUMBERS: Final = {BYTE: ">b", SHORT: ">h", INT: ">i", LONG: ">q", TIMESTAMP: ">q"}

Header = tuple[str, int, str | bytes | int | UUID | None]


@dataclass(frozen=True)
class Right:
    """A frame that every decoder must read.

    Attributes:
        names: Of the vectors that are this frame.
        headers: Name, type and value of each.
        payload: The payload.
        checksum: Of the frame, as published.
    """

    names: tuple[str, ...]
    headers: tuple[Header, ...]
    payload: bytes
    checksum: int

    @property
    def wire(self) -> bytes:
        return frame(block(self.headers), self.payload)


@dataclass(frozen=True)
class Wrong:
    """Bytes that every decoder must refuse.

    Attributes:
        name: Of the vector.
        wire: The bytes.
        says: What our decoder says of them.
        repaired: The same with the checksum that its bytes give, if what is wrong is in the headers.
    """

    name: str
    wire: bytes
    says: str
    repaired: bytes | None = None


def block(headers: tuple[Header, ...]) -> bytes:
    """Headers as bytes."""
    made = b""
    for name, kind, value in headers:
        made += bytes([len(name)]) + name.encode() + bytes([kind])
        match value:
            case str() | bytes():
                raw = value.encode() if isinstance(value, str) else value
                made += struct.pack(">H", len(raw)) + raw
            case UUID():
                made += value.bytes
            case int():
                made += struct.pack(_NUMBERS[kind], value)
    return made


def frame(headers: bytes, payload: bytes, headers_length: int | None = None) -> bytes:
    """A frame with right checksums, which may tell another length of its headers."""
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), headers_length or len(headers))
    return repaired(prelude + _crc(prelude) + headers + payload + bytes(4))


def repaired(wire: bytes) -> bytes:
    """A frame with the checksum that its bytes give."""
    return wire[:-4] + _crc(wire[:-4])


def changed(wire: bytes, at: int, to: bytes) -> bytes:
    """Bytes with others at an offset."""
    return wire[:at] + to + wire[at + len(to) :]


def _crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


_FOO_BAR: Final = b"{'foo':'bar'}"
_JSON: Final = ("content-type", STRING, "application/json")
RUBY: Final = (
    Right(
        ("all_headers",),
        (
            ("event-type", INT, 40972),
            _JSON,
            ("bool false", FALSE, None),
            ("bool true", TRUE, None),
            ("byte", BYTE, -49),
            ("byte buf", BLOB, b"I'm a little teapot!"),
            ("timestamp", TIMESTAMP, 8675309),
            ("int16", SHORT, 42),
            ("int64", LONG, 42424242),
            ("uuid", ID, UUID(bytes=bytes(range(1, 17)))),
        ),
        _FOO_BAR,
        -1415188212 % (1 << 32),
    ),
    Right(("empty_message",), (), b"", 2107164927),
    Right(("int32_header",), (("event-type", INT, 40972),), _FOO_BAR, 921993376),
    Right(("payload_no_headers",), (), _FOO_BAR, -1016776394 % (1 << 32)),
    Right(("payload_one_str_header",), (_JSON,), _FOO_BAR, -1919153999 % (1 << 32)),
)
_ONE_HEADER: Final = RUBY[-1].wire
_NO_HEADER: Final = RUBY[-2].wire
RUBY_WRONG: Final = (
    Wrong("corrupted_header_len", changed(_ONE_HEADER, 6, b"\x01"), "prelude has checksum"),
    Wrong("corrupted_headers", changed(_ONE_HEADER, 20, b"+"), "bytes has checksum"),
    Wrong("corrupted_length", changed(_NO_HEADER, 0, b"\x01"), "prelude has checksum"),
    Wrong("corrupted_payload", changed(_NO_HEADER, 24, b"\x8d"), "bytes has checksum"),
)

_ALL: Final = Right(
    ("valid_with_all_headers_and_payload",),
    (
        ("true", TRUE, None),
        ("false", FALSE, None),
        ("byte", BYTE, 50),
        ("short", SHORT, 20_000),
        ("int", INT, 500_000),
        ("long", LONG, 50_000_000_000),
        ("bytes", BLOB, b"some bytes"),
        ("str", STRING, "some str"),
        ("time", TIMESTAMP, 5_000_000_000),
        ("uuid", ID, UUID("b79bc914-de21-4e13-b8b2-bc47e85b7f0b")),
    ),
    b"some payload",
    0x01A05860,
)
RUST: Final = (
    _ALL,
    Right(("valid_empty_payload",), (("some-header", SHORT, 500),), b"", 0x933C5CAD),
    Right(("valid_no_headers",), (), b"another test payload", 0x8DF80E65),
)
# Where the text header begins, what is before it, and what of it is left where it is cut off within its length.
_TEXT: Final = 12 + len(block(_ALL.headers[:7]))
_CUT_OFF: Final = block(_ALL.headers[:7]) + b"\x03str\x07\xff"
_NO_TEXT: Final = block(_ALL.headers[:1]) + b"\x66\x05alse" + bytes([0xFF]) * 100
_NAME: Final = changed(_ALL.wire, 12 + len(block(_ALL.headers[:2])), b"\xff")
_KIND: Final = changed(_ALL.wire, 12 + len(block(_ALL.headers[:2])) + 5, b"\x60")
_LENGTH: Final = changed(_ALL.wire, _TEXT + 5, b"\xff\xff")
RUST_WRONG: Final = (
    Wrong("invalid_header_name_length", _NAME, "bytes has checksum", repaired(_NAME)),
    Wrong("invalid_header_name_length_too_long", changed(frame(_NO_TEXT, b""), len(_NO_TEXT) + 12, bytes(4)), "bytes has checksum",
          frame(_NO_TEXT, b"")),
    Wrong("invalid_header_string_length_cut_off", changed(frame(_CUT_OFF, b""), len(_CUT_OFF) + 12, bytes(4)), "bytes has checksum",
          frame(_CUT_OFF, b"")),
    Wrong("invalid_header_string_value_length", _LENGTH, "bytes has checksum", repaired(_LENGTH)),
    Wrong("invalid_header_value_type", _KIND, "bytes has checksum", repaired(_KIND)),
    Wrong("invalid_headers_length", frame(_CUT_OFF[:-4], b"", len(_CUT_OFF)), "claims to have 77 bytes of headers"),
    Wrong("invalid_message_checksum", changed(_ALL.wire, 146, b"\xde\xad\xbe\xef"), "checksum 0xdeadbeef, but its bytes give 0x01a05860"),
    Wrong("invalid_prelude_checksum", changed(_ALL.wire, 8, b"\xde\xad\xbe\xef"), "checksum 0xdeadbeef, but its bytes give 0x8bb495fb"),
)  # fmt: skip


def _in_each_operation(*kinds: str) -> tuple[str, ...]:
    return tuple(f"{duplex}{kind}{way}" for kind in kinds for duplex in ("", "Duplex") for way in ("Input", "Output"))


def _smithy(name: str, checksum: int, *headers: Header, payload: bytes = b"") -> Right:
    return Right(_in_each_operation(name), headers, payload, checksum)


def _event(name: str, checksum: int, payload: bytes, *headers: Header, content: str = "application/json") -> Right:
    """An event of the type that its name says."""
    kind = (_TYPE, STRING, name[0].lower() + name[1:])
    return _smithy(name, checksum, _EVENT, kind, (":content-type", STRING, content), *headers, payload=payload)


_EVENT: Final = (":message-type", STRING, "event")
_TYPE: Final = ":event-type"
_HEADERS: Final = (_EVENT, (_TYPE, STRING, "headers"))
_CONTENT: Final = (":content-type", STRING, "application/json")
_EXPLICIT: Final = (_TYPE, STRING, "headersAndExplicitPayload")
_FOO: Final = ("header", STRING, "foo")
_BAR: Final = b'{"structureMember":"bar"}'
SMITHY: Final = (
    Right(
        (
            *_in_each_operation("BooleanHeader"),
            *(f"{d}MissingRequiredInitial{way}" for d in ("", "Duplex") for way in ("RequestInput", "ResponseOutput")),
        ),
        (*_HEADERS, ("booleanHeader", TRUE, None)),
        b"",
        0xB827D5AC,
    ),
    _smithy("ByteHeader", 0x2854E68E, *_HEADERS, ("byteHeader", BYTE, 1)),
    _smithy("ShortHeader", 0xF5113B0A, *_HEADERS, ("shortHeader", SHORT, 2)),
    _smithy("IntegerHeader", 0xE5C94ADB, *_HEADERS, ("intHeader", INT, 3)),
    _smithy("LongHeader", 0xE76777F2, *_HEADERS, ("longHeader", LONG, 4294967294)),
    _smithy("BlobHeader", 0x9B1B6C63, *_HEADERS, ("blobHeader", BLOB, b"foo")),
    _smithy("StringHeader", 0xC53FB630, *_HEADERS, ("stringHeader", STRING, "foo")),
    # 2024-10-31T14:15:14Z
    _smithy("TimestampHeader", 0xEAE57712, *_HEADERS, ("timestampHeader", TIMESTAMP, 1730384114000)),
    _smithy("MultipleHeader", 0x035DBA3B, *_HEADERS, ("booleanHeader", TRUE, None), ("stringHeader", STRING, "foo"),
            ("blobHeader", BLOB, b"bar")),
    _event("StringPayload", 0x46D442EB, b"foo", content="text/plain"),
    _event("BlobPayload", 0x6FE67189, b"bar", content="application/octet-stream"),
    _event("StructurePayload", 0xADC21154, b'{"structureMember":"foo"}'),
    _event("UnionPayload", 0xC643303E, b'{"unionMember":"bar"}'),
    _event("HeadersAndExplicitPayload", 0x369F297B, _BAR, _FOO),
    _event("HeadersAndImplicitPayload", 0x79959B53, b'{"payload":"bar"}', _FOO),
    Right(
        _in_each_operation("ServerError", "ClientError"),
        ((":message-type", STRING, "exception"), (":exception-type", STRING, "error"), _CONTENT),
        b'{"message":"foo"}',
        0x3B9AD52F,
    ),
    Right(
        tuple(f"{d}{which}" for d in ("", "Duplex") for which in ("ServerUnexpectedErrorInput", "ClientUnexpectedErrorOutput")),
        (
            (":message-type", STRING, "error"),
            (":error-code", STRING, "internal-error"),
            (":error-message", STRING, "An unknown error occurred."),
        ),
        b"",
        0x24BA7D2D,
    ),
    _smithy("MissingMessageType", 0xF0B7B126, _EXPLICIT, _CONTENT, _FOO, payload=_BAR),
    _smithy("MalformedMessageType", 0x5C1D7F35, (":message-type", BLOB, b"event"), _EXPLICIT, _CONTENT, _FOO, payload=_BAR),
    _smithy("MissingEventType", 0xAE2CB41A, _EVENT, _CONTENT, _FOO, payload=_BAR),
    _smithy("MalformedEventType", 0xC3FA28B9, _EVENT, (_TYPE, BLOB, b"headersAndExplicitPayload"), _CONTENT, _FOO, payload=_BAR),
)  # fmt: skip

RIGHT: Final = (*RUBY, *RUST, *SMITHY)
WRONG: Final = (*RUBY_WRONG, *RUST_WRONG)
