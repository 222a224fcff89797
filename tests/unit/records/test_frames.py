"""Frames: whatever the cuts, the same frames; whatever is wrong, a FrameError that says so."""

import struct
import time
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import FrameError
from kinesis_efo.records.frames import MAX_FRAME, Frame, FrameDecoder, encode_frame
from kinesis_efo_local import wire
from tests.support.decoders import decoder as decoder

HEADERS = {":message-type": "event", ":event-type": "SubscribeToShardEvent"}
FRAME = encode_frame(HEADERS, b'{"Records":[]}')

frames = st.tuples(
    st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50), max_size=4), st.binary(max_size=3000)
)


def decode(wire_bytes: bytes, *cuts: int) -> list[Frame]:
    decoder = FrameDecoder()
    edges = [0, *sorted(cuts), len(wire_bytes)]
    found = [frame for start, stop in pairwise(edges) for frame in decoder.feed(wire_bytes[start:stop])]
    decoder.finish()
    return found


@given(st.lists(frames, max_size=5), st.data())
def test_frames_are_the_same_at_any_cut(sent: list[tuple[dict[str, str], bytes]], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(headers, payload) for headers, payload in sent)
    decoder, found = FrameDecoder(), []
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    for start, stop in pairwise([0, *sorted(cuts), len(stream)]):
        found += decoder.feed(stream[start:stop])
        if data.draw(st.booleans()):
            decoder.collect()
    decoder.finish()
    assert found == [Frame(headers, payload) for headers, payload in sent]
    assert decoder.awaited == 0


@given(st.lists(frames, min_size=1, max_size=3))
def test_botocore_and_the_local_aws_agree_on_the_bytes(sent: list[tuple[dict[str, str], bytes]]) -> None:
    stream = b"".join(encode_frame(headers, payload) for headers, payload in sent)
    assert stream == b"".join(wire.encode_frame(wire.encode_headers(headers), payload) for headers, payload in sent)
    theirs = EventStreamBuffer()
    theirs.add_data(stream)
    assert [Frame(event.headers, event.payload) for event in theirs] == decode(stream)


@pytest.mark.parametrize("chunk_size", [64 << 10, 700])
def test_a_large_event_takes_linear_time(chunk_size: int) -> None:
    def seconds(size: int) -> float:
        stream = encode_frame(HEADERS, bytes(size))
        chunks = [stream[at : at + chunk_size] for at in range(0, len(stream), chunk_size)]
        best = float("inf")
        for _ in range(3):
            decoder = FrameDecoder()
            begin = time.process_time()
            found = [frame for chunk in chunks for frame in decoder.feed(chunk)]
            best = min(best, time.process_time() - begin)
            assert [len(frame.payload) for frame in found] == [size]
        return best

    small, large = seconds(1 << 20), seconds(16 << 20)
    # Quadratic would be 256 times as long; botocore's buffer takes seconds for 10 MiB.
    assert large < small * 64 + 0.05


def test_bit_errors_are_found_anywhere() -> None:
    for position in range(len(FRAME)):
        broken = bytearray(FRAME)
        broken[position] ^= 0x10
        with pytest.raises(FrameError):
            decode(bytes(broken))


def test_frames_before_a_broken_one_are_delivered_first() -> None:
    broken = bytearray(FRAME)
    broken[-1] ^= 1
    decoder = FrameDecoder()
    assert len(decoder.feed(FRAME + bytes(broken) + FRAME)) == 1
    assert (decoder.awaited, decoder.missing) == (0, 0), "no room is taken for what will not come"
    with pytest.raises(FrameError, match=r"a frame of 88 bytes has checksum 0x[0-9a-f]{8}, but its bytes give 0x"):
        decoder.feed(b"")
    with pytest.raises(FrameError, match="checksum"):
        decoder.finish()
    only = FrameDecoder()
    with pytest.raises(FrameError, match="checksum"):
        only.feed(bytes(broken))
    with pytest.raises(FrameError, match="checksum"):
        only.finish()  # nothing is left of it, and it was wrong all the same


def prelude(total: int, headers: int) -> bytes:
    lengths = struct.pack(">II", total, headers)
    return lengths + struct.pack(">I", zlib.crc32(lengths))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((MAX_FRAME + 1, 0), "a frame claims to have 25165825 bytes; between 16 and 25165824 are possible"),
        ((15, 0), "a frame claims to have 15 bytes"),
        ((0xFFFFFFFF, 0), "a frame claims to have 4294967295 bytes"),
        ((100, 85), "a frame of 100 bytes claims to have 85 bytes of headers"),
    ],
)
def test_impossible_lengths_are_refused_before_anything_is_buffered(lengths: tuple[int, int], message: str) -> None:
    with pytest.raises(FrameError, match=message):
        FrameDecoder().feed(prelude(*lengths))


@pytest.mark.parametrize("total", [MAX_FRAME, 16])
def test_the_longest_and_the_shortest_frame_are_accepted(total: int) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(prelude(total, 0)) == []
    assert decoder.awaited == total


@pytest.mark.parametrize("length", [1, 11, 12, 60, len(FRAME) - 1])
def test_a_stream_that_ends_inside_a_frame(length: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(FRAME + FRAME[:length])
    wanted = f" of {len(FRAME)}" if length >= 12 else ""
    with pytest.raises(FrameError, match=f"the stream ended inside a frame, after {length}{wanted} bytes"):
        decoder.finish()


def raw_frame(headers: bytes, payload: bytes = b"") -> bytes:
    message = prelude(16 + len(headers) + len(payload), len(headers)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))


@given(st.binary(max_size=300))
def test_garbage_raises_frame_errors_only(garbage: bytes) -> None:
    decoder = FrameDecoder()
    with suppress(FrameError):
        decoder.feed(raw_frame(garbage[:40], garbage[40:]))
        decoder.feed(garbage)
        decoder.finish()
