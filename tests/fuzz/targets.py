"""The targets of fuzzing: each takes any bytes, and raises if a decoder breaks a promise.

The promises: a decoder raises nothing but the library's errors, its output is in proportion to its input, and two ways of reading the
same bytes agree, be they Python and the native core. Targets compute correct checksums, because no fuzzer guesses them.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from hashlib import md5
from typing import Final

# PyArrow imports it with the first rows; the input that has them would be said to take too long.
import pandas as pd  # noqa: F401

from kinesis_efo.errors import FrameError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey, ShardRange
from kinesis_efo.records.aggregation import MAGIC, deaggregate
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.frames import Frame, FrameDecoder
from tests.fuzz.http2 import http2
from tests.support.agreement import agree, agree_on_answer, agree_on_frames, agree_on_head

KEY: Final = ShardKey("orders", "shardId-000000000000")
OTHER: Final = ShardKey("orders", "shardId-000000000001")
LEAST_RECORD: Final = 6
"""Size of the smallest record of an aggregate, bytes: tag and length, a key's tag and index, the data's tag and length."""


def wire(data: bytes) -> None:
    """The bytes of a response, in one piece, and in pieces of a size that the first byte gives."""
    step = 1 + data[0] if data else 1
    assert _frames(data, len(data) or 1) == _frames(data, step)
    # In at most so many pieces: two decoders with two readers each take their time.
    size = max(step, len(data) // 32)
    agree_on_frames([data[at : at + size] for at in range(0, len(data), size)])


def frame(data: bytes) -> None:
    """A frame with correct checksums: the first two bytes are the size of the headers, the rest headers and payload."""
    size = int.from_bytes(data[:2], "big")
    headers, payload = data[2 : 2 + size], data[2 + size :]
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    prelude += struct.pack(">I", zlib.crc32(prelude))
    body = prelude + headers + payload
    whole = body + struct.pack(">I", zlib.crc32(body))
    agree_on_frames([whole, whole[:20], whole[20:]])
    frames, _ = _frames(whole, 7)
    for one in frames:
        assert one.payload == payload
        assert sum(len(name) for name in one.headers) <= len(headers)


def event(data: bytes) -> None:
    """The JSON of an event, as the fetcher reads it and passes its head on as JSON."""
    head = agree_on_head(data)
    if head is None:
        return
    assert (head.continuation is None) == bool(head.children)
    assert head.records <= len(data)
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        # The fetcher skips unknown fields without parsing them completely.
        return
    assert len(parsed.get("Records", ())) == head.records


def answer(data: bytes) -> None:
    """The JSON of an answer to GetRecords."""
    read = agree_on_answer(data)
    if read is None:
        return
    assert (read.iterator is None) == (bool(read.events) and read.events[-1].head.continuation is None)
    assert read.bytes <= len(data)
    assert sum(one.head.records for one in read.events) == read.records <= len(data)


def records(data: bytes) -> None:
    """The JSON of an event, as a task reads it."""
    for after, through in ((TRIM_HORIZON, SHARD_END), (Position.after(40), Position.after(50))):
        try:
            batches = list(decode([data, data], KEY, after, through, deaggregate=True, hash_range=(0, 1 << 127)))
        except FrameError:
            continue
        numbers = [int(number) for batch in batches for number in batch.column("sequenceNumber").to_pylist()]
        assert numbers == sorted(numbers)
        if after.value:
            assert all(40 < number <= 50 for number in numbers)
        for batch in batches:
            batch.validate(full=True)


def core(data: bytes) -> None:
    """Events as a task reads them, by Python and by the native core. A line is an event; behind an empty line are those of the next range."""
    ranges = [part.split(b"\n") for part in data.split(b"\n\n")]
    for after, through in (
        (TRIM_HORIZON, SHARD_END),
        (Position.after(40), Position.after(50)),
        (Position.inside(41, 0), SHARD_END),
    ):
        parts = [
            (ShardRange(OTHER if number % 2 else KEY, after, through), events) for number, events in enumerate(ranges)
        ]
        for apart in (True, False):
            agree(parts, deaggregate=apart)


def values(data: bytes) -> None:
    """Records whose form is right, by Python and by the native core. Three lines are a record's partition key, data and time, as JSON has
    them."""
    lines = data.split(b"\n")
    written = [
        b'{"SequenceNumber":"%d","PartitionKey":"%b","Data":"%b","ApproximateArrivalTimestamp":%b}'
        % (number, *lines[number : number + 3])
        for number in range(0, len(lines) - 2, 3)
    ]
    agree([(ShardRange(KEY, TRIM_HORIZON, SHARD_END), [b'{"Records":[' + b",".join(written) + b"]}"])])


def aggregate(data: bytes) -> None:
    """The message of an aggregate, with its magic number and a correct digest."""
    whole = MAGIC + data + md5(data, usedforsecurity=False).digest()
    everything = deaggregate(whole, None)
    within = deaggregate(whole, (0, 1 << 127))
    assert within == everything or within == [] or within is None
    for inside in everything or ():
        assert len(inside.partition_key) <= 256
    assert len(everything or ()) * LEAST_RECORD <= len(data)
    assert sum(len(inside.data) for inside in everything or ()) <= len(data)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "wire": wire,
    "frame": frame,
    "event": event,
    "answer": answer,
    "records": records,
    "core": core,
    "values": values,
    "aggregate": aggregate,
    "http2": http2,
}


def _frames(data: bytes, step: int) -> tuple[list[Frame], bool]:
    """The frames in some bytes, fed `step` bytes at a time, and whether the decoder raised an error."""
    decoder = FrameDecoder()
    frames: list[Frame] = []
    try:
        for start in range(0, len(data), step):
            frames += decoder.feed(data[start : start + step])
        decoder.finish()
    except FrameError:
        return frames, True
    return frames, False
