"""A process that serves prepared events at the speed of a socket: it answers ListShards and SubscribeToShard as Kinesis does.

The body of a subscription is a file, with its chunked encoding, that the kernel copies to the socket: on two cores, the
server must not use the CPU time that is measured. Every shard has the same events.
"""

from __future__ import annotations

import base64
import contextlib
import json
import mmap
import multiprocessing
import os
import random
import ssl
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import IO, Final

import msgspec

from benchmarks.certificate import server_context
from kinesis_efo.records.frames import encode_frame

RECORDS_PER_EVENT: Final = 500
EVENT_HEADERS: Final = {
    ":message-type": "event",
    ":event-type": "SubscribeToShardEvent",
    ":content-type": "application/x-amz-json-1.1",
}
# A sequence number of 56 digits: the prefix, 8 digits for the event, 6 for the record.
_PREFIX: Final = 495903382714902566085596925383615710959215
_EVENT_NUMBER: Final = b"#NUMBER#"
INITIAL_RESPONSE: Final = encode_frame({**EVENT_HEADERS, ":event-type": "initial-response"}, b"{}")
IDLE_SECONDS: Final = 1.0
_ENCRYPTED_AT_ONCE: Final = 256 << 10


class CannedStream:
    """The events of a shard, in their form on the wire.

    Args:
        record_bytes: Size of a record's data.
        events: Number of events, of `RECORDS_PER_EVENT` records each. Their data repeats; their sequence numbers do not.
        different: Number of events with different data.
        millis: Milliseconds from one event to the next, by which their lag shrinks.
        chunked: Whether the file has the chunked encoding of HTTP/1.1.

    Attributes:
        frame_bytes: Size of all frames, without the chunked encoding.
        last: Sequence number of the last record.
    """

    def __init__(
        self, record_bytes: int, events: int, different: int = 16, *, millis: int = 1, chunked: bool = True
    ) -> None:
        self.frame_bytes = 0
        self.last = 0
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the stream
        self._ends: list[int] = []
        self._starts = [0]
        source = random.Random(2013)
        templates = [_records(source, record_bytes) for _ in range(min(events, different))]
        for event in range(events):
            number = b"%08d" % event
            self.last = last_number(event + 1)
            payload = b'{"ContinuationSequenceNumber":"%d","MillisBehindLatest":%d,"Records":%b}' % (
                self.last,
                (events - 1 - event) * millis,
                templates[event % len(templates)].replace(_EVENT_NUMBER, number),
            )
            frame = encode_frame(EVENT_HEADERS, payload)
            self.frame_bytes += len(frame)
            size = self.file.write(_chunk(frame) if chunked else frame)
            self._ends.append(self.last)
            self._starts.append(self._starts[-1] + size)
        self.file.flush()

    def offset_after(self, sequence_number: int) -> int:
        """The offset in the file of the first event after a sequence number."""
        return self._starts[bisect_right(self._ends, sequence_number)]

    def end_at(self, offset: int) -> int:
        """The offset in the file of the end of the event at an offset."""
        return self._starts[bisect_right(self._starts, offset)]

    @cached_property
    def view(self) -> memoryview:
        """The file, mapped into memory."""
        return memoryview(mmap.mmap(self.file.fileno(), self.size, prot=mmap.PROT_READ))

    @property
    def size(self) -> int:
        """Size of the file, bytes."""
        return self._starts[-1]

    @property
    def first_event(self) -> int:
        """Size of the first event, bytes."""
        return self._starts[1]


def last_number(events: int) -> int:
    """The sequence number of the last record of a shard with this many events."""
    return (_PREFIX * 10**8 + events - 1) * 10**6 + RECORDS_PER_EVENT - 1


def _records(source: random.Random, record_bytes: int) -> bytes:
    return msgspec.json.encode(
        [
            {
                "ApproximateArrivalTimestamp": 1.7e9 + source.randrange(10**6) / 1000,
                "Data": base64.b64encode(source.randbytes(record_bytes)).decode(),
                "EncryptionType": "NONE",
                "PartitionKey": f"key-{source.randrange(10**6)}",
                "SequenceNumber": f"{_PREFIX}{_EVENT_NUMBER.decode()}{number:06d}",
            }
            for number in range(RECORDS_PER_EVENT)
        ]
    )


def idle_event(number: int) -> bytes:
    """The frame of an event without records."""
    event = b'{"ContinuationSequenceNumber":"%d","MillisBehindLatest":0,"Records":[]}' % number
    return encode_frame(EVENT_HEADERS, event)


def listed_shards(shards: int) -> bytes:
    """The answer to ListShards."""
    width = 2**128 // shards
    listed = [
        {
            "ShardId": f"shardId-{number:012d}",
            "HashKeyRange": {
                "StartingHashKey": str(number * width),
                "EndingHashKey": str((number + 1) * width - 1),
            },
            "SequenceNumberRange": {"StartingSequenceNumber": str(_PREFIX * 10**14)},
        }
        for number in range(shards)
    ]
    return json.dumps({"Shards": listed}).encode()


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


class CannedKinesis:
    """A running server of prepared events.

    Args:
        endpoint: Its URL.
        frame_bytes: Size of one shard's frames.
        orders: The pipe to its process.
    """

    def __init__(self, endpoint: str, frame_bytes: int, orders: Connection) -> None:
        self.endpoint = endpoint
        self.frame_bytes = frame_bytes
        self._orders = orders

    def hold(self) -> None:
        """Send no more than the first event of each shard from now on, until `release`. HTTP/1.1 only."""
        self._orders.send(True)
        self._orders.recv()

    def release(self) -> None:
        """Send everything."""
        self._orders.send(False)
        self._orders.recv()


@contextlib.contextmanager
def canned_kinesis(
    record_bytes: int,
    events: int,
    shards: int,
    *,
    http2: bool = False,
    tls: bool = False,
    millis: int = 1,
    pause: float = 0.0,
) -> Iterator[CannedKinesis]:
    """Run a process that serves prepared events.

    Args:
        record_bytes: Size of a record's data.
        events: Number of events per shard.
        shards: Number of shards of every stream.
        http2: Whether it speaks HTTP/2, and nothing else, instead of HTTP/1.1.
        tls: Whether it speaks TLS. Its certificate is `benchmarks.certificate`'s.
        millis: Milliseconds from one event to the next, by which their lag shrinks. HTTP/1.1 only, as the next.
        pause: Seconds from one event of a shard to the next; 0: as fast as the socket takes them.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    more = () if http2 else (millis, pause)
    serve = _serve_http2 if http2 else _serve
    process = context.Process(target=serve, args=(theirs, record_bytes, events, shards, tls, *more), daemon=True)
    process.start()
    try:
        if not ours.poll(120):
            raise RuntimeError("the server of prepared events did not start within 120 s; run it on an idle machine")
        port, frame_bytes = ours.recv()
        yield CannedKinesis(f"{'https' if tls else 'http'}://127.0.0.1:{port}", frame_bytes, ours)
    finally:
        process.terminate()
        process.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024


def _serve(
    ready: Connection, record_bytes: int, events: int, shards: int, tls: bool, millis: int, pause: float
) -> None:
    stream = CannedStream(record_bytes, events, millis=millis)
    released = threading.Event()
    released.set()
    server = _Server(("127.0.0.1", 0), _handler(stream, shards, released, pause))
    if tls:
        # Its handshakes are made by the threads of the connections, with their first read.
        server.socket = server_context().wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    ready.send((server.server_port, stream.frame_bytes))
    threading.Thread(target=_obey, args=(ready, released), daemon=True).start()
    server.serve_forever()


def _obey(orders: Connection, released: threading.Event) -> None:
    with contextlib.suppress(EOFError):
        while True:
            if orders.recv():
                released.clear()
            else:
                released.set()
            orders.send(None)


def _serve_http2(ready: Connection, record_bytes: int, events: int, shards: int, tls: bool) -> None:
    from benchmarks.canned_http2 import serve  # it imports this module

    stream = CannedStream(record_bytes, events, chunked=False)
    serve(stream, shards, lambda port: ready.send((port, stream.frame_bytes)), tls=tls)


def _handler(
    stream: CannedStream, shards: int, released: threading.Event, pause: float
) -> type[BaseHTTPRequestHandler]:
    listed = listed_shards(shards)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            match self.headers["X-Amz-Target"].rpartition(".")[2]:
                case "ListShards":
                    self._answer(listed)
                case "SubscribeToShard":
                    with contextlib.suppress(OSError):
                        self._push(request["StartingPosition"])
                    self.close_connection = True
                case operation:
                    self.send_error(400, f"the server of prepared events does not know {operation}")

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _push(self, start: dict[str, str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.amazon.eventstream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(_chunk(INITIAL_RESPONSE))
            at = stream.offset_after(int(start.get("SequenceNumber", 0)))
            while at < stream.first_event and not released.is_set():
                at += self._send(at, stream.first_event)
            released.wait()
            while at < stream.size:
                end, began = stream.end_at(at) if pause else stream.size, time.monotonic()
                while at < end:
                    at += self._send(at, end)
                time.sleep(max(0.0, pause - (time.monotonic() - began)))
            idle = threading.Event()
            number = stream.last
            while not idle.wait(IDLE_SECONDS):
                number += 1
                self.wfile.write(_chunk(idle_event(number)))

        def _send(self, at: int, to: int) -> int:
            if not isinstance(self.connection, ssl.SSLSocket):
                return os.sendfile(self.connection.fileno(), stream.file.fileno(), at, to - at)
            return self.connection.send(stream.view[at : min(to, at + _ENCRYPTED_AT_ONCE)])

        def log_message(self, *_: object) -> None:
            pass

    return Handler
