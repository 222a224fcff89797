"""Frames of HTTP/2: whatever the cuts, the same frames, and the same as hyperframe and h2 read."""

import random
from itertools import pairwise

import pytest
from hyperframe.frame import (
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.http2.frames import HEADER_BYTES, FrameSplitter, MalformedFrame

LARGEST = 16384


class Heard:
    """What a splitter says, with the pieces of one frame put together again."""

    def __init__(self) -> None:
        self.said: list[tuple[object, ...]] = []

    def data(self, stream_id: int, piece: memoryview, padding: int) -> None:
        assert len(piece) or padding, "nothing is not worth a call"
        if not padding and self.said and self.said[-1][:2] == ("data", stream_id):
            piece = memoryview(self.said.pop()[2] + bytes(piece))  # type: ignore[operator]
        self.said.append(
            ("data", stream_id, bytes(piece)) if not padding else ("padded", stream_id, bytes(piece), padding)
        )

    def ended(self, stream_id: int) -> None:
        self.said.append(("ended", stream_id))

    def frame(self, kind: int, frame: bytes) -> None:
        self.said.append(("frame", kind, frame))


def split(wire: bytes, *cuts: int, largest: int = LARGEST) -> list[tuple[object, ...]]:
    heard = Heard()
    splitter = FrameSplitter(heard, largest)
    for start, stop in pairwise([0, *sorted(cuts), len(wire)]):
        # The buffer is used again, as a connection's is.
        buffer = bytearray(wire[start:stop])
        splitter.feed(memoryview(buffer))
        buffer[:] = b"\xee" * len(buffer)
    return heard.said


def extension(stream: int, body: bytes) -> ExtensionFrame:
    frame = ExtensionFrame(0xB7, stream, body=body)
    frame.body_len = len(body)  # hyperframe does not know it by itself
    return frame


streams = st.integers(1, 2**31 - 1)
frames = st.one_of(
    st.builds(
        lambda stream, data, end: DataFrame(stream, data, flags=["END_STREAM"] if end else []),
        streams,
        st.binary(max_size=600),
        st.booleans(),
    ),
    st.builds(
        lambda stream, data, pad, end: DataFrame(
            stream, data, pad_length=pad, flags=["PADDED", "END_STREAM"] if end else ["PADDED"]
        ),
        streams,
        st.binary(max_size=300),
        st.integers(0, 255),
        st.booleans(),
    ),
    st.builds(lambda stream, data: HeadersFrame(stream, data, flags=["END_HEADERS"]), streams, st.binary(max_size=300)),
    st.builds(lambda data: PingFrame(0, data), st.binary(min_size=8, max_size=8)),
    st.builds(lambda value: SettingsFrame(0, {3: value}), st.integers(0, 2**32 - 1)),
    st.just(SettingsFrame(0, flags=["ACK"])),
    st.builds(lambda stream, code: RstStreamFrame(stream, code), streams, st.integers(0, 20)),
    st.builds(lambda last, data: GoAwayFrame(0, last, 0, data), streams, st.binary(max_size=40)),
    st.builds(lambda stream, size: WindowUpdateFrame(stream, size), streams, st.integers(1, 2**31 - 1)),
    st.builds(lambda stream, body: extension(stream, body), st.just(0) | streams, st.binary(max_size=40)),
)


def as_hyperframe_reads(wire: bytes) -> list[tuple[object, ...]]:
    heard, at = Heard(), 0
    while at < len(wire):
        frame, length = Frame.parse_frame_header(memoryview(wire)[at : at + HEADER_BYTES])
        whole = wire[at : at + HEADER_BYTES + length]
        at += len(whole)
        if not isinstance(frame, DataFrame):
            heard.frame(whole[3], whole)
            continue
        frame.parse_body(memoryview(whole)[HEADER_BYTES:])
        if length:
            heard.data(frame.stream_id, memoryview(frame.data), frame.flow_controlled_length - len(frame.data))
        if "END_STREAM" in frame.flags:
            heard.ended(frame.stream_id)
    return heard.said


@given(st.lists(frames, max_size=6), st.data())
def test_frames_are_those_of_hyperframe_at_any_cut(sent: list[Frame], data: st.DataObject) -> None:
    wire = b"".join(frame.serialize() for frame in sent)
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=12))
    assert split(wire, *cuts) == split(wire) == as_hyperframe_reads(wire)


def header(length: int, kind: int, flags: int, stream: int) -> bytes:
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")


@pytest.mark.parametrize("cut", range(12))
@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (header(LARGEST + 1, 0, 0, 1) + b"abc", r"a frame of 16385 bytes; 16384 are allowed"),
        (header(2**24 - 1, 4, 0, 0) + b"abc", r"a frame of 16777215 bytes"),
        (b"HTTP/1.1 400 Bad Request\r\n", r"a frame of 4740180 bytes"),
        (header(3, 0, 0, 0) + b"abc", r"data of stream 0"),
        (header(0, 0, 0, 0) + b"abc", r"data of stream 0"),
        (header(3, 0, 8, 0) + b"\0bc", r"data of stream 0"),
        (header(0, 0, 8, 1) + b"abc", r"too short for its padding length"),
        (header(3, 0, 8, 1) + b"\3bc", r"a frame of 3 bytes with 4 of padding"),
        (header(1, 0, 8, 1) + b"\1bc", r"a frame of 1 bytes with 2 of padding"),
    ],
)
def test_what_no_peer_may_send(wire: bytes, text: str, cut: int) -> None:
    with pytest.raises(MalformedFrame, match=text):
        split(wire, cut)


def test_largest_frame_with_a_reserved_bit_is_allowed() -> None:
    assert split(header(LARGEST, 0, 0, 0x80000001) + bytes(LARGEST), 4, 5000) == [("data", 1, bytes(LARGEST))]


@given(st.binary(max_size=400), st.integers(0, 2**32))
def test_any_bytes_are_read_or_refused(garbage: bytes, seed: int) -> None:
    def read(*cuts: int) -> list[tuple[object, ...]] | str:
        try:
            return split(garbage, *cuts)
        except MalformedFrame as wrong:
            return str(wrong)

    assert read(*random.Random(seed).choices(range(len(garbage) + 1), k=5)) == read()
