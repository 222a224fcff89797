"""Bytes on the wire that are not as they should be: borne where that is possible, told where it is not."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kinesis_efo.errors import FrameError, RetriesExhaustedError
from kinesis_efo.options import RetrySettings
from kinesis_efo.records.frames import MAX_FRAME, FrameDecoder
from kinesis_efo_local import Close, Finish, NoFaults, Reset
from kinesis_efo_local.fault_injection import Step
from kinesis_efo_local.wire import event_frame
from tests.support.fetching import reading
from tests.support.world import World

FEW_RETRIES = RetrySettings(max_retries=2, base_ms=1, max_ms=5)
Change = Callable[[bytes], Iterable[Step]]


class Broken(NoFaults):
    """Changes the frames of events: the first few of them, or all."""

    def __init__(self, change: Change, times: int = 1 << 30) -> None:
        self.change = change
        self.times = times

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Step]:
        if b"initial-response" in frame[:200] or not self.times:
            return [frame]
        self.times -= 1
        return self.change(frame)


def rewritten(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the JSON of an event; its frame is a valid one."""

    def apply(frame: bytes) -> Iterable[Step]:
        (decoded,) = FrameDecoder().feed(frame)
        event = json.loads(decoded.payload)
        event = change(event) or event
        return [event_frame(event if isinstance(event, bytes) else json.dumps(event).encode())]

    return apply


def flipped(frame: bytes) -> Iterable[Step]:
    middle = len(frame) // 2
    return [frame[:middle] + bytes([frame[middle] ^ 1]) + frame[middle + 1 :]]


def half(frame: bytes) -> Iterable[Step]:
    return [frame[: len(frame) // 2], Finish()]


def oversized(frame: bytes) -> Iterable[Step]:
    return [(MAX_FRAME + 1).to_bytes(4, "big") + frame[4:]]


def announced(size: int) -> Change:
    """A prelude with a right checksum that announces too much."""
    prelude = struct.pack("!II", size, 0)
    return lambda _: [prelude + struct.pack("!I", zlib.crc32(prelude)) + b"x" * 100]


BROKEN = {
    "a flipped bit": (flipped, "a frame of \\d+ bytes has checksum 0x[0-9a-f]+, but its bytes give 0x[0-9a-f]+"),
    "half a frame": (half, r"the stream ended inside a frame, after \d+ of \d+ bytes"),
    "half a frame, cut off": (lambda frame: [frame[:50], Close()], r"the stream ended inside|payload|[Dd]isconnect|closed by the other side"),
    "a reset": (lambda _: [Reset()], r"[Rr]eset|payload|[Dd]isconnect|closed before"),
    "garbage": (lambda _: [b"\x00" * 200], "a frame's prelude has checksum 0x00000000"),
    "a length that was changed": (oversized, "a frame's prelude has checksum"),
    "a frame of 30 MB": (announced(30 << 20), f"a frame says it has {30 << 20} bytes; between 16 and {MAX_FRAME} are possible"),
    "no JSON": (rewritten(lambda _: b"not json"), "an event of 8 bytes cannot be read: .*it begins with b'not json'"),
    "neither end nor continuation": (
        rewritten(lambda event: event.update(ContinuationSequenceNumber=None)),
        "neither a continuation nor child shards",
    ),
    "a continuation that is no number": (
        rewritten(lambda event: event.update(ContinuationSequenceNumber="soon")),
        "ContinuationSequenceNumber of an event must be a number of at most 200 digits; got 'soon'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("transport", ["http1", "http2"])
@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_twice_is_read_again(name: str, transport: str, faulty: Callable[..., World]) -> None:
    w = faulty(Broken(BROKEN[name][0], times=2))
    w.put((f"k{n}", f"{n:03d}".encode()) for n in range(100))
    with reading(w, retry=FEW_RETRIES, transport=transport) as r:
        rows = r.until(100)
    assert [row.data for row in rows] == [f"{n:03d}".encode() for n in range(100)]


# Shows 16.
@pytest.mark.parametrize("transport", ["http1", "http2"])
@pytest.mark.parametrize("name", BROKEN)
def test_lasting_wire_fault_fails_the_query_with_the_reason(
    name: str, transport: str, faulty: Callable[..., World]
) -> None:
    change, reason = BROKEN[name]
    w = faulty(Broken(change))
    w.put([("k", b"data")])
    with (
        reading(w, retry=FEW_RETRIES, transport=transport) as r,
        pytest.raises(RetriesExhaustedError, match=reason) as caught,
    ):
        r.until(1)
    message = str(caught.value)
    assert "orders" in message and "shardId-000000000000" in message and w.consumers["orders"] in message


def test_a_frame_of_20_mb_is_read(faulty: Callable[..., World]) -> None:
    w = faulty(Broken(rewritten(lambda event: event.update(Padding="x" * (20 << 20))), times=1))
    w.put([("k", b"data")])
    with reading(w, bufferBytes="1m") as r:
        assert [row.data for row in r.until(1)] == [b"data"]


def test_records_of_no_bytes_and_of_10_mib(faulty: Callable[..., World]) -> None:
    w = faulty(NoFaults(), MaxRecordSizeInKiB=10240)
    large = bytes(range(256)) * (10 << 12)
    large = large[: (10 << 20) - 10]
    for data in (b"", large, b"", b"x"):
        w.kinesis.put_record(StreamName=w.streams["orders"], PartitionKey="k", Data=data)
    with reading(w, bufferBytes="1m") as r:
        rows = r.until(4)
    assert [row.data for row in rows] == [b"", large, b"", b"x"]


def test_a_missing_partition_key_is_null(faulty: Callable[..., World]) -> None:
    def drop(event: dict[str, Any]) -> None:
        for record in event["Records"]:
            del record["PartitionKey"]

    w = faulty(Broken(rewritten(drop)))
    w.put([("k", b"data")])
    with reading(w) as r:
        assert [(row.key, row.data) for row in r.until(1)] == [(None, b"data")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda record: record.update(Data="%%%"), "an event of shard orders:shardId-000000000000 cannot be decoded"),
        (lambda record: record.pop("SequenceNumber"), "missing required field `SequenceNumber`"),
        (lambda record: record.update(SequenceNumber="x"), "cannot be decoded"),
    ],
)
def test_undecodable_record_is_an_error_in_the_task(
    change: Callable[[dict[str, Any]], Any], reason: str, faulty: Callable[..., World]
) -> None:
    w = faulty(Broken(rewritten(lambda event: [change(record) for record in event["Records"]] and None)))
    w.put([("k", b"data")])
    with reading(w) as r, pytest.raises(FrameError, match=reason):
        r.until(1)
