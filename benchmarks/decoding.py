"""Decodes a subscription's bytes to rows, compared with botocore's event parser. One core, CPU time, no network.

Both start with the same event-stream frames. botocore ends with Python dicts; the library ends with the Arrow batches for
Spark, with the order checked and aggregates unpacked: by Python, and by the native core if it is installed. The absolute numbers
depend on the machine.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import botocore.session
import msgspec
from botocore.eventstream import EventStreamBuffer
from botocore.parsers import EventStreamJSONParser

from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, ShardKey
from kinesis_efo.records import core
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.events import read_answer, read_head
from kinesis_efo.records.frames import FrameDecoder, encode_frame

RECORDS_PER_EVENT: Final = 500
EVENTS: Final = 20
ROUNDS: Final = 5
CHUNK: Final = 128 << 10
KEY: Final = ShardKey("orders", "shardId-000000000000")
GOALS: Final = {1024: 12.0, 100: 25.0}
"""How many times faster than botocore decoding must be, by record size in bytes."""

Work: TypeAlias = Callable[[list[bytes]], int]
"""Reads chunks of a stream, or answers; returns the number of records."""


def wire(record_bytes: int) -> list[bytes]:
    """Events in their form on the wire: frames, cut into chunks."""
    source = random.Random(2013)
    frames = bytearray()
    number = 49590338271490256608559692538361571095921575989136588898
    for _ in range(EVENTS):
        records = []
        for _ in range(RECORDS_PER_EVENT):
            number += source.randrange(1, 1000)
            records.append(
                {
                    "ApproximateArrivalTimestamp": 1.7e9 + source.randrange(10**6) / 1000,
                    "Data": base64.b64encode(source.randbytes(record_bytes)).decode(),
                    "EncryptionType": "NONE",
                    "PartitionKey": f"key-{source.randrange(10**6)}",
                    "SequenceNumber": str(number),
                }
            )
        event = {"ContinuationSequenceNumber": str(number), "MillisBehindLatest": 0, "Records": records}
        headers = {
            ":message-type": "event",
            ":event-type": "SubscribeToShardEvent",
            ":content-type": "application/x-amz-json-1.1",
        }
        frames += encode_frame(headers, msgspec.json.encode(event))
    return [bytes(frames[at : at + CHUNK]) for at in range(0, len(frames), CHUNK)]


def ours(chunks: list[bytes]) -> int:
    """The work of fetcher and task together."""

    def payloads() -> Iterator[bytes]:
        decoder = FrameDecoder()
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                read_head(frame.payload)
                yield frame.payload

    return sum(batch.num_rows for batch in decode(payloads(), KEY, TRIM_HORIZON, SHARD_END, deaggregate=True))


def fetcher(chunks: list[bytes]) -> int:
    """The work of the fetcher alone: frames, checksums, heads of events."""
    decoder = FrameDecoder()
    return sum(read_head(frame.payload).records for chunk in chunks for frame in decoder.feed(chunk))


def answers(chunks: list[bytes]) -> list[bytes]:
    """The events of a stream as GetRecords answers them."""
    decoder = FrameDecoder()
    payloads = [frame.payload for chunk in chunks for frame in decoder.feed(chunk)]
    return [b'{"NextShardIterator":"%s",%s' % (b"A" * 226, payload.partition(b",")[2]) for payload in payloads]


def poller(bodies: list[bytes]) -> int:
    """The work of the fetcher that polls: heads of answers."""
    return sum(read_answer(body).records for body in bodies)


def readers() -> dict[str, core.Choice]:
    """Python, and the native core if it is installed and reads events."""
    native = core.choose({})
    return {"Python": core.choose({core.SWITCH: "off"})} | (
        {"core": native} if getattr(native, "core", None) or getattr(native, "events", None) else {}
    )


def by(choice: core.Choice, work: Work) -> Work:
    """Some work, done by Python or by the core."""

    def run(chunks: list[bytes]) -> int:
        with patch.object(core, "CHOSEN", choice):
            return work(chunks)

    return run


def stock() -> Work:
    """botocore's event parser, set up as in its clients."""
    model = botocore.session.Session().get_service_model("kinesis")
    shape = model.operation_model("SubscribeToShard").output_shape.members["EventStream"]
    parser = EventStreamJSONParser()

    def run(chunks: list[bytes]) -> int:
        count = 0
        buffer = EventStreamBuffer()
        for chunk in chunks:
            buffer.add_data(chunk)
            for event in buffer:
                parsed: dict[str, Any] = parser.parse(event.to_response_dict(), shape)
                count += len(parsed["SubscribeToShardEvent"]["Records"])
        return count

    return run


def rate(work: Work, chunks: list[bytes]) -> float:
    """Records per second of CPU time, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        count = work(chunks)
        best = min(best, time.process_time() - begin)
        assert count == EVENTS * RECORDS_PER_EVENT
    return count / best


def main() -> list[dict[str, object]]:
    """Measure, print the table and return its rows."""
    rows: list[dict[str, object]] = []
    for size, goal in GOALS.items():
        chunks = wire(size)
        paths: dict[str, Work] = {"botocore": stock()}
        for reader, choice in readers().items():
            paths |= {f"fetcher, {reader}": by(choice, fetcher), f"rows, {reader}": by(choice, ours)}
        rates = {name: rate(work, chunks) for name, work in paths.items()}
        polled = answers(chunks)
        rates |= {f"answers, {reader}": rate(by(choice, poller), polled) for reader, choice in readers().items()}
        for name, speed in rates.items():
            rows.append(
                {
                    "record": f"{size} B",
                    "path": name,
                    "records/s": round(speed),
                    "ns": round(1e9 / speed),
                    "MB/s": round(speed * size / 1e6, 1),
                    "ratio": round(speed / rates["botocore"], 1),
                    "goal": goal if name.startswith("rows") else None,
                }
            )
    columns = list(rows[0])
    print("  ".join(f"{column:>15}" for column in columns))
    for row in rows:
        print("  ".join(f"{'' if value is None else value:>15}" for value in row.values()))
    return rows


if __name__ == "__main__":
    main()
