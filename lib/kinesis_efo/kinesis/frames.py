"""Frames of `application/vnd.amazon.eventstream`, decoded as they arrive, in time linear in their bytes.

A frame is: total length, length of the headers, CRC of these two; headers; payload; CRC of everything before it. All
numbers are big-endian. Relies on zlib for CRC-32 (https://smithy.io/2.0/aws/amazon-eventstream.html).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

from kinesis_efo.errors import FrameError

MAX_FRAME: Final = 24 << 20
"""Longest frame in bytes. The largest event is one record of 10 MiB, 13.4 MiB as base64; the format allows 24 MiB."""

_PRELUDE: Final = struct.Struct(">III")
_CHECKSUM: Final = struct.Struct(">I")
_LEAST: Final = _PRELUDE.size + _CHECKSUM.size
_TRUE, _FALSE, _BYTES, _STRING = 0, 1, 6, 7
_FIXED: Final = {2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}

HeaderValue = str | bytes | bool


class Frame(NamedTuple):
    """One frame whose checksums were right.

    Attributes:
        headers: By name, for example `:message-type` and `:event-type`. Numbers, times and UUIDs stay raw bytes: no
            header that this library reads has one.
        payload: The body; JSON in a SubscribeToShard stream.
    """

    headers: dict[str, HeaderValue]
    payload: bytes


class FrameDecoder:
    """Turns chunks of a response body, cut anywhere, into frames.

    >>> decoder = FrameDecoder()
    >>> wire = encode_frame({":event-type": "initial-response"}, b"{}")
    >>> decoder.feed(wire[:7]), decoder.feed(wire[7:])
    ([], [Frame(headers={':event-type': 'initial-response'}, payload=b'{}')])
    >>> decoder.finish()
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._fault: FrameError | None = None

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[Frame]:
        """Take the next bytes in.

        Args:
            chunk: Bytes as the socket gave them.

        Returns:
            The frames that these bytes completed, in order.

        Raises:
            FrameError: A length is impossible or a checksum is wrong. Frames before it are returned first, the error comes
                with the next call. The decoder does not recover: it cannot know where the next frame begins.
        """
        if self._fault:
            raise self._fault
        frames: list[Frame] = []
        try:
            if self._rest:
                self._rest += chunk
                with memoryview(self._rest) as view:
                    used = _decode(view, frames)
                # From the front of a bytearray this moves a pointer, not the bytes.
                del self._rest[:used]
            else:
                with memoryview(chunk) as view:
                    used = _decode(view, frames)
                    self._rest += view[used:]
        except FrameError as fault:
            self._fault = fault
            if not frames:
                raise
        return frames

    def finish(self) -> None:
        """Say that no more bytes come.

        Raises:
            FrameError: The last frame is incomplete or wrong.
        """
        if self._fault:
            raise self._fault
        if self._rest:
            wanted = f" of {_PRELUDE.unpack_from(self._rest)[0]}" if len(self._rest) >= _PRELUDE.size else ""
            raise FrameError(f"the stream ended inside a frame, after {len(self._rest)}{wanted} bytes")


def _decode(view: memoryview, frames: list[Frame]) -> int:
    start = 0
    while len(view) - start >= _PRELUDE.size:
        total, headers_length, checksum = _PRELUDE.unpack_from(view, start)
        running = crc32(view[start : start + 8])
        if running != checksum:
            raise FrameError(f"a frame's prelude has checksum {checksum:#010x} but says {running:#010x}")
        if not _LEAST <= total <= MAX_FRAME:
            raise FrameError(f"a frame says it has {total} bytes; between {_LEAST} and {MAX_FRAME} are possible")
        if headers_length > total - _LEAST:
            raise FrameError(f"a frame of {total} bytes says that {headers_length} of them are headers")
        if len(view) - start < total:
            break
        end = start + total - _CHECKSUM.size
        # Every byte up to the checksum counts, the prelude's own checksum included.
        running = crc32(view[start + 8 : end], running)
        (checksum,) = _CHECKSUM.unpack_from(view, end)
        if running != checksum:
            raise FrameError(
                f"a frame of {total} bytes has checksum {checksum:#010x} but its bytes give {running:#010x}"
            )
        body = start + _PRELUDE.size + headers_length
        headers = _headers(bytes(view[start + _PRELUDE.size : body]))
        frames.append(Frame(headers, bytes(view[body:end])))
        start += total
    return start


def _headers(raw: bytes) -> dict[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    at = 0
    try:
        while at < len(raw):
            name_end = at + 1 + raw[at]
            name = raw[at + 1 : name_end].decode()
            kind = raw[name_end]
            at = name_end + 1
            if kind in (_TRUE, _FALSE):
                headers[name] = kind == _TRUE
                continue
            if kind in (_BYTES, _STRING):
                length = int.from_bytes(raw[at : at + 2], "big")
                at += 2
            else:
                length = _FIXED[kind]
            value = raw[at : at + length]
            if len(value) < length:
                raise FrameError(f"header {name!r} of a frame is cut off: {len(value)} of {length} bytes")
            headers[name] = value.decode() if kind == _STRING else value
            at += length
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise FrameError(f"the headers of a frame cannot be read: {type(error).__name__}: {error}") from None
    return headers


def encode_frame(headers: dict[str, str], payload: bytes) -> bytes:
    """The bytes of a frame with text headers."""
    block = b"".join(
        bytes([len(name.encode())])
        + name.encode()
        + bytes([_STRING])
        + len(value.encode()).to_bytes(2, "big")
        + value.encode()
        for name, value in headers.items()
    )
    lengths = struct.pack(">II", _LEAST + len(block) + len(payload), len(block))
    message = lengths + _CHECKSUM.pack(crc32(lengths)) + block + payload
    return message + _CHECKSUM.pack(crc32(message))
