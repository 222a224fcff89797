"""Splits received HTTP/2 bytes into frames. DATA frames without padding are passed on as their bytes arrive, other frames as a whole. This
module only interprets the header and the padding of a frame."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kinesis_efo.http2.connection import Connection

DATA: Final = 0x0
GOAWAY: Final = 0x7
HEADER_BYTES: Final = 9
_HEADER: Final = struct.Struct(">HBBBL")
_END_STREAM: Final = 0x1
_PADDED: Final = 0x8


class MalformedFrame(Exception):
    """The bytes are not a valid frame; the connection must be closed."""


class FrameSplitter:
    """Splits a connection's bytes into frames, and passes them to `sink`. `largest` is the maximum frame size in bytes, without header."""

    def __init__(self, sink: Connection, largest: int) -> None:
        self._sink = sink
        self._largest = largest
        self._whole = bytearray()
        self._wanted = HEADER_BYTES
        self._stream = 0
        self._left = 0
        self._ends = False

    def feed(self, view: memoryview) -> None:
        """Process the next bytes, which may begin and end anywhere in a frame. The caller may reuse the memory of `view` afterwards."""
        at, end = 0, len(view)
        while at < end:
            if self._left:
                stop = min(end, at + self._left)
                self._left -= stop - at
                self._sink.data(self._stream, view[at:stop], 0)
                at = stop
                if not self._left and self._ends:
                    self._sink.ended(self._stream)
            elif not self._whole and end - at >= HEADER_BYTES:
                at = self._begin(view, at)
            else:
                at = self._collect(view, at)

    def _begin(self, view: memoryview, at: int) -> int:
        """Process the frame header at offset `at`. Return the offset at which `feed` continues."""
        high, low, kind, flags, stream = _HEADER.unpack_from(view, at)
        length, stream = high << 8 | low, stream & 0x7FFFFFFF
        if length > self._largest:
            raise MalformedFrame(f"a frame of {length} bytes; {self._largest} are allowed")
        if kind == DATA and stream and not flags & _PADDED:
            self._stream, self._left, self._ends = stream, length, bool(flags & _END_STREAM)
            if not length and self._ends:
                self._sink.ended(stream)
            return at + HEADER_BYTES
        if not length:
            self._whole_frame(bytes(view[at : at + HEADER_BYTES]))
            return at + HEADER_BYTES
        self._wanted = HEADER_BYTES + length
        return self._collect(view, at)

    def _collect(self, view: memoryview, at: int) -> int:
        stop = min(len(view), at + self._wanted - len(self._whole))
        self._whole += view[at:stop]
        if len(self._whole) == self._wanted:
            self._collected()
        return stop

    def _collected(self) -> None:
        whole = bytes(self._whole)
        self._whole.clear()
        if self._wanted == HEADER_BYTES:
            # Process a frame header that arrived in several pieces and is now complete.
            self._begin(memoryview(whole), 0)
            return
        self._wanted = HEADER_BYTES
        self._whole_frame(whole)

    def _whole_frame(self, whole: bytes) -> None:
        kind, flags = whole[3], whole[4]
        stream = int.from_bytes(whole[5:9], "big") & 0x7FFFFFFF
        if kind != DATA:
            self._sink.frame(kind, whole)
        elif not stream:
            raise MalformedFrame("data of stream 0, which is the connection itself")
        else:
            self._padded(stream, whole, ends=bool(flags & _END_STREAM))

    def _padded(self, stream: int, whole: bytes, *, ends: bool) -> None:
        if len(whole) == HEADER_BYTES:
            raise MalformedFrame("a padded frame that is too short for its padding length")
        padding = whole[HEADER_BYTES] + 1
        if HEADER_BYTES + padding > len(whole):
            raise MalformedFrame(f"a frame of {len(whole) - HEADER_BYTES} bytes with {padding} of padding")
        self._sink.data(stream, memoryview(whole)[HEADER_BYTES + 1 : len(whole) - padding + 1], padding)
        if ends:
            self._sink.ended(stream)
