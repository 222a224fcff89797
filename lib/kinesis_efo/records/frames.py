"""Decodes frames of `application/vnd.amazon.eventstream` as they arrive, in time proportional to their size.

A frame consists of: total length, headers length, CRC of both lengths, headers, payload, and CRC of all preceding bytes. All numbers are
big-endian (https://smithy.io/2.0/aws/amazon-eventstream.html).

If the native core is installed, it decodes valid frames of usual length. The Python code decodes all other frames and raises the errors.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kinesis_efo.errors import FrameError
from kinesis_efo.records import core

if TYPE_CHECKING:
    from kinesis_efo_core import Frames

try:
    # This `crc32` is ten times as fast as zlib's, with which checksums take a third of a fetcher's CPU time.
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

MAX_FRAME: Final = 24 << 20
"""Maximum size of a frame in bytes. The format allows 24 MiB; the largest event has one record of 10 MiB, or 13.4 MiB as base64."""

_PRELUDE: Final = struct.Struct(">III")
_CHECKSUM: Final = struct.Struct(">I")
_LEAST: Final = _PRELUDE.size + _CHECKSUM.size
_TRUE, _FALSE, _BYTES, _STRING = 0, 1, 6, 7
_FIXED: Final = {2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}

HeaderValue = str | bytes | bool


class Frame(NamedTuple):
    """One frame with correct checksums. The payload of a SubscribeToShard stream is JSON.

    `headers` contains, for example, `:event-type`. Numbers, times and UUIDs, which this library does not use, are left as raw bytes.
    """

    headers: dict[str, HeaderValue]
    payload: bytes


class FrameDecoder:
    """Decodes the chunks of a response body into frames. A chunk may begin and end anywhere in a frame.

    >>> decoder = FrameDecoder()
    >>> wire = encode_frame({":event-type": "initial-response"}, b"{}")
    >>> decoder.feed(wire[:7]), decoder.feed(wire[7:])
    ([], [Frame(headers={':event-type': 'initial-response'}, payload=b'{}')])
    >>> decoder.finish()
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._have = 0
        self._prelude: tuple[int, int, int] | None = None
        self._fault: FrameError | None = None
        self._core: Frames | None = core.CHOSEN.core and core.CHOSEN.core.Frames()

    def feed(self, chunk: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that `chunk` completes, in order. Raises `FrameError` for an impossible length or a wrong checksum.

        If the chunk completes frames before the error, this call returns these frames, and the next call raises the error. After an error,
        the start of the next frame is unknown, so each further call raises the error again.
        """
        if self._core is None or self._begun:
            return self._feed(chunk)
        found, rest = self._core.feed(chunk if isinstance(chunk, bytes) else bytes(chunk))
        frames = [Frame(*each) for each in found]
        try:
            return frames if rest is None else frames + self._feed(rest)
        except FrameError:
            if not frames:
                raise
            return frames

    @property
    def _begun(self) -> bool:
        """Whether Python must decode the next chunk: after an error, or while a frame that the native core declined is incomplete."""
        return bool(self._have or self._fault)

    def _feed(self, chunk: bytes | bytearray | memoryview) -> list[Frame]:
        if self._fault:
            raise self._fault
        end = self._have + len(chunk)
        self._buffer[self._have : end] = chunk
        self._have = end
        frames: list[Frame] = []
        at = 0
        try:
            while self._have - at >= (self._prelude[0] if self._prelude else _PRELUDE.size):
                if self._prelude is None:
                    self._prelude = _check_prelude(self._buffer[at : at + _PRELUDE.size])
                else:
                    # Clear `_prelude` first, so that `awaited` and `missing` are 0 if the frame is invalid.
                    prelude, self._prelude = self._prelude, None
                    frames.append(_frame(self._buffer, at, *prelude))
                    at += prelude[0]
        except FrameError as fault:
            self._fault = fault
            if not frames:
                raise
        del self._buffer[:at]
        self._have -= at
        return frames

    @property
    def awaited(self) -> int:
        """Length of the incomplete frame in bytes; 0 if its first bytes, which contain the length, have not arrived."""
        if self._core is not None and not self._begun:
            return self._core.awaited
        return self._prelude[0] if self._prelude else 0

    @property
    def missing(self) -> int:
        """Number of bytes of the incomplete frame that have not arrived; 0 if the frame's length is unknown."""
        if self._core is not None and not self._begun:
            return self._core.missing
        return self._prelude[0] - self._have if self._prelude else 0

    def collect(self) -> None:
        """Allocate memory for the whole incomplete frame, so that the buffer is not copied later, which would need twice the memory."""
        if self._prelude:
            self._buffer.extend(bytes(max(0, self._prelude[0] - len(self._buffer))))

    def finish(self) -> None:
        """Check, at the end of the response, that its last frame was complete. Raises `FrameError` if it is incomplete or invalid."""
        if self._core is not None:
            self._feed(self._core.rest())
        if self._fault:
            raise self._fault
        if self._have:
            wanted = f" of {self._prelude[0]}" if self._prelude else ""
            raise FrameError(f"the stream ended inside a frame, after {self._have}{wanted} bytes")


def _frame(buffer: bytearray, at: int, total: int, headers_length: int, running: int) -> Frame:
    start, middle, end = at + _PRELUDE.size, at + _PRELUDE.size + headers_length, at + total - _CHECKSUM.size
    headers, payload = bytes(memoryview(buffer)[start:middle]), bytes(memoryview(buffer)[middle:end])
    (checksum,) = _CHECKSUM.unpack_from(buffer, end)
    running = crc32(payload, crc32(headers, running))
    if running != checksum:
        raise FrameError(f"a frame of {total} bytes has checksum {checksum:#010x}, but its bytes give {running:#010x}")
    return Frame(_headers(headers), payload)


def _check_prelude(prelude: bytearray) -> tuple[int, int, int]:
    """Check a frame's first 12 bytes. Return the frame's length, the length of its headers, and the checksum of these bytes."""
    total, headers_length, checksum = _PRELUDE.unpack(prelude)
    running = crc32(prelude[:8])
    if running != checksum:
        raise FrameError(f"a frame's prelude has checksum {checksum:#010x}, but its bytes give {running:#010x}")
    if not _LEAST <= total <= MAX_FRAME:
        raise FrameError(f"a frame claims to have {total} bytes; between {_LEAST} and {MAX_FRAME} are possible")
    if headers_length > total - _LEAST:
        raise FrameError(f"a frame of {total} bytes claims to have {headers_length} bytes of headers")
    # The frame's checksum covers the whole prelude, including the prelude's checksum.
    return total, headers_length, crc32(prelude[8:], running)


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
                length = raw[at] << 8 | raw[at + 1]
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
    """Encode a frame. All header values are strings."""
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
