"""The transport against real HTTP: what Kinesis sends, what breaks on the way, and what closing does.

These tests also say whether a new aiobotocore still lets the response's body be taken: every one of them needs it.
"""

import asyncio
import json
import struct
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import ClientError, EventStreamError

from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.faults import Verdict, classify
from kinesis_efo.kinesis.transport import BotoTransport, EventStream, Unlimited, starting_position
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.frames import encode_frame
from kinesis_efo_local import AwsError, Close, Finish, Freeze, GoAway, NoFaults, Pause, Request, Reset, ResetStream
from kinesis_efo_local.wire import exception_frame
from tests.support.coroutine_tests import until

from .conftest import Bench

SHARD = "shardId-000000000000"
Local = Callable[..., Bench]


class Frames(NoFaults):
    """Replaces the second event."""

    def __init__(self, change: Callable[[bytes], Iterable[Any]]) -> None:
        self.change = change

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Any]:
        return self.change(frame) if subscription.events == 1 else [frame]


@asynccontextmanager
async def subscribed(bench: Bench, stream: StreamRef, **config: Any) -> AsyncIterator[EventStream]:
    """The events of the first shard, from its horizon on."""
    async with bench.client(**config) as client:
        events = await BotoTransport(client).subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
        yield events
        events.close()


async def read(stream: EventStream, events: int) -> list[bytes]:
    payloads: list[bytes] = []
    async for event in stream:
        payloads.append(event.payload)
        if len(payloads) == events:
            break
    return payloads


async def drain(stream: EventStream, into: list[bytes]) -> None:
    async for event in stream:
        into.append(event.payload)  # noqa: PERF401 - what came before an error counts


def keys(payloads: list[bytes]) -> list[str]:
    batches = decode(payloads, ShardKey("orders", SHARD), TRIM_HORIZON, SHARD_END, deaggregate=False)
    return [key for batch in batches for key in batch["partitionKey"].to_pylist()]


async def test_payloads_are_the_events_json_as_it_came(local: Local) -> None:
    bench = local(max_event_records=2)
    stream = bench.stream()
    bench.put(*"abcde")
    async with subscribed(bench, stream) as events:
        payloads = await read(events, 3)
        assert events.received > sum(map(len, payloads))
    assert keys(payloads) == list("abcde")
    assert all(type(payload) is bytes for payload in payloads)
    assert set(json.loads(payloads[0])) >= {"ContinuationSequenceNumber", "MillisBehindLatest", "Records"}


async def test_a_timestamp_reaches_kinesis_to_the_millisecond(local: Local) -> None:
    bench = local()
    stream = bench.stream()
    async with bench.client() as client:
        transport = BotoTransport(client)
        for epoch_ms in (1700000000001, 1700000000999, 1699999999123, 1700000000000):
            (await transport.subscribe(stream, SHARD, Position.at_timestamp(epoch_ms), Unlimited())).close()
            (call,) = [call for call in bench.aws.kinesis.trace if call.operation == "SubscribeToShard"][-1:]
            assert call.params["StartingPosition"] == {"Type": "AT_TIMESTAMP", "Timestamp": epoch_ms / 1000}


# Shows 17.
def test_nothing_starts_behind_the_end() -> None:
    with pytest.raises(ValueError, match="SHARD_END"):
        starting_position(SHARD_END)


# Shows 83.
@pytest.mark.parametrize("epoch_ms", [10**18, 10**199])
def test_a_time_of_no_calendar(epoch_ms: int) -> None:
    with pytest.raises(ValueError, match=r"AT_TIMESTAMP:10+ is outside") as caught:
        starting_position(Position.at_timestamp(epoch_ms))
    assert classify(caught.value).verdict is Verdict.INVALID


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, (10 << 20) - 1])
async def test_records_of_every_size(local: Local, size: int) -> None:
    bench = local()
    stream = bench.stream()
    bench.kinesis.update_max_record_size(StreamARN=stream.stream_arn, MaxRecordSizeInKiB=10240)
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    bench.put("k", data=data)
    async with subscribed(bench, stream) as events:
        begin = time.process_time()
        (payload,) = await read(events, 1)
        # botocore's own buffer would take seconds for the largest.
        assert time.process_time() - begin < 1.5
    (batch,) = decode([payload], ShardKey("orders", SHARD), TRIM_HORIZON, SHARD_END, deaggregate=True)
    assert batch["data"][0].as_py() == data


# -- what breaks on the way


def flipped(frame: bytes) -> bytes:
    return frame[:-6] + bytes([frame[-6] ^ 1]) + frame[-5:]


ERROR_FRAME = encode_frame({":message-type": "error", ":error-code": "InternalError", ":error-message": "oops"}, b"")


def huge() -> bytes:
    lengths = struct.pack(">II", (24 << 20) + 1, 0)
    return lengths + struct.pack(">I", zlib.crc32(lengths))


BROKEN = (aiohttp.ClientError, ConnectionError)


# Shows 39.
@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda _: [Reset()], BROKEN, ""),
        (lambda _: [Close()], BROKEN, ""),
        (lambda _: [ResetStream()], BROKEN, ""),
        (lambda _: [GoAway(grace=False)], BROKEN, ""),
        (lambda frame: [frame[: len(frame) // 2], Reset()], BROKEN, ""),
        (lambda frame: [frame[: len(frame) // 2], ResetStream()], BROKEN, ""),
        (lambda frame: [frame[: len(frame) // 2], Finish()], FrameError, "ended inside a frame"),
        (lambda frame: [frame[:7], Finish()], FrameError, "ended inside a frame, after 7 bytes"),
        (lambda frame: [flipped(frame)], FrameError, "checksum"),
        (lambda _: [huge()], FrameError, "25165825 bytes"),
        (lambda _: [b"HTTP/1.1 200 OK\r\n\r\n"], FrameError, "prelude"),
        (lambda _: [Pause(30)], TimeoutError, ""),
        (lambda _: [Freeze(30)], TimeoutError, ""),
        (lambda frame: [frame[:20], Pause(30)], TimeoutError, ""),
        (lambda _: [encode_frame({":message-type": "news"}, b"")], FrameError, "unknown :message-type 'news'"),
        (lambda _: [encode_frame({}, b"")], FrameError, "unknown :message-type None"),
        (lambda _: [ERROR_FRAME], EventStreamError, "InternalError"),
        (lambda _: [exception_frame(AwsError("InternalFailureException", "oops")), Finish()], EventStreamError, "oops"),
    ],
)
async def test_what_breaks_a_stream_raises_and_counts_as_transient(
    local: Local, change: Callable[[bytes], Iterable[Any]], kind: type[Exception], text: str
) -> None:
    bench = local(Frames(change), max_event_records=2, idle_event_seconds=60)
    stream = bench.stream()
    bench.put(*"ab")
    async with subscribed(bench, stream, read_timeout=0.5) as events:
        # A RST of TCP also drops what was received and not read yet: the first event is read before the second one breaks.
        seen = await read(events, 1)
        await asyncio.to_thread(bench.put, *"cd")
        with pytest.raises(kind, match=text or None) as caught:
            await drain(events, seen)
        assert keys(seen) == ["a", "b"]
        assert classify(caught.value).verdict is Verdict.RETRY


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda frame: [bytes([byte]) for byte in frame], "abcd"),
        (lambda frame: [frame[:9], Pause(0.2), frame[9:]], "abcd"),
        (lambda frame: [encode_frame({":message-type": "event", ":event-type": "FutureEvent"}, b"?"), frame], "abcd"),
    ],
)
async def test_what_is_only_unusual_is_read(
    local: Local, change: Callable[[bytes], Iterable[Any]], expected: str
) -> None:
    bench = local(Frames(change), max_event_records=2)
    stream = bench.stream()
    bench.put(*"abcd")
    async with subscribed(bench, stream) as events:
        assert keys(await read(events, 2)) == list(expected)


async def test_exception_inside_the_stream_comes_after_its_events(local: Local) -> None:
    taken_over = exception_frame(AwsError("ResourceInUseException", "because"))
    bench = local(Frames(lambda frame: [frame, taken_over, Finish()]), max_event_records=2)
    stream = bench.stream()
    bench.put(*"abcd")
    async with subscribed(bench, stream) as events:
        seen: list[bytes] = []
        with pytest.raises(EventStreamError, match="because") as caught:
            await drain(events, seen)
        assert keys(seen) == list("abcd"), "what came before the exception, also in the same chunk"
        assert caught.value.response["Error"] == {"Code": "ResourceInUseException", "Message": "because"}
        assert classify(caught.value).verdict is Verdict.TAKEN_OVER
        with pytest.raises(EventStreamError):
            await anext(aiter(events))


# -- what Kinesis refuses


async def test_refusals_are_raised_and_not_retried_by_the_sdk(local: Local) -> None:
    asked = []

    class Refusing(NoFaults):
        async def before(self, request: Request) -> None:
            if request.operation == "SubscribeToShard":
                asked.append(request)
                raise AwsError("InternalFailure", "oops", 500)

    bench = local(Refusing())
    stream = bench.stream()
    async with bench.client() as client:
        with pytest.raises(ClientError, match="oops") as caught:
            await BotoTransport(client).subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
        assert classify(caught.value).verdict is Verdict.RETRY
    assert len(asked) == 1


# -- closing


# Shows 11.
async def test_close_ends_a_waiting_read(local: Local) -> None:
    bench = local(idle_event_seconds=60)
    stream = bench.stream()
    async with bench.client() as client:
        events = await BotoTransport(client).subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
        waiting = asyncio.ensure_future(read(events, 1))
        await until(lambda: bench.aws.kinesis.subscriptions and events.received)
        assert not waiting.done()
        events.close()
        events.close()
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert done
        assert waiting.exception() is None or isinstance(waiting.exception(), aiohttp.ClientError | OSError)
        assert await anext(aiter(events), None) is None
        await until(lambda: not bench.aws.kinesis.subscriptions)


# Shows 19.
async def test_closed_connections_do_not_use_up_the_pool(local: Local) -> None:
    bench = local()
    stream = bench.stream()
    async with bench.client(max_pool_connections=2) as client:
        transport = BotoTransport(client)
        for _ in range(20):
            async with asyncio.timeout(2):
                events = await transport.subscribe(stream, SHARD, TRIM_HORIZON, Unlimited())
            events.close()
