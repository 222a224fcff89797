"""Defines the `Transport` protocol for subscribing to shards, and implements it with SubscribeToShard and aiobotocore.

The client chooses HTTP/2 or HTTP/1.1. Events are not parsed by botocore, whose parser is ten times slower and quadratic in the event size.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec
from botocore.exceptions import EventStreamError

from kinesis_efo.errors import FrameError
from kinesis_efo.http2.response import HttpFacts, Response, tls_version
from kinesis_efo.http2.session import session_class
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position, PositionKind
from kinesis_efo.raw_bodies import RAW_BODY, keep_answers
from kinesis_efo.records.events import Event, read_head
from kinesis_efo.records.frames import Frame, FrameDecoder, encode_frame


def subscription_config(
    transport: str = "auto", share: Callable[[], int] = lambda: 1 << 62, *, silence: float = 35
) -> dict[str, Any]:
    """Return the client configuration for subscriptions, except `max_pool_connections`.

    `max_pool_connections` must exceed the number of shards: otherwise, a call would wait forever for a connection. The client does not
    retry, because `ShardSubscription` does.

    Args:
        transport: One of `kinesis_efo.http2.session.TRANSPORTS`.
        share: Returns how many bytes a subscription may receive without reserved buffer space. Limits the HTTP/2 window or socket buffer.
        silence: Maximum seconds without a byte. Even for an idle shard, Kinesis sends an event every 5 s.
    """

    def make(address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        if (most := share()) < _LARGEST_READ:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, max(_LEAST_UNREAD, most // 2))
        return made

    return {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": 10,
        "read_timeout": silence,
        "http_session_cls": session_class(transport, share, socket_factory=make),
    }


OPERATION: Final = "SubscribeToShard"
_LARGEST_READ: Final = 256 << 10
_LEAST_UNREAD: Final = 8 << 10
_INITIAL_RESPONSE: Final = encode_frame({":message-type": "event", ":event-type": "initial-response"}, b"{}")


class NoRoom(Exception):
    """Raised if no space became free for `Limits.full` seconds. The subscription is then closed until there is space."""


class Quota(Protocol):
    """Buffer space for the events of one subscription. A transport reserves space before it reads an event."""

    @property
    def share(self) -> int:
        """Bytes that the transport may receive before it reserves space for them."""
        ...

    def try_reserve(self, size: int) -> bool:
        """Reserve space for the next event's payload of at most `size` bytes. Return whether there was enough."""
        ...

    async def reserve(self, size: int) -> None:
        """Called after `try_reserve` has failed: wait for space and reserve it. Raises `NoRoom` after a timeout."""
        ...

    def release(self) -> None:
        """Release the space reserved for an event that will not arrive."""
        ...


class Unlimited:
    """Unlimited space; implements `Quota`."""

    share = 1 << 62

    def try_reserve(self, size: int) -> bool:  # noqa: ARG002
        return True

    async def reserve(self, size: int) -> None:
        pass

    def release(self) -> None:
        pass


class EventStream(Protocol):
    """The events of one subscription. Only one task at a time may read them."""

    @property
    def received(self) -> int:
        """Bytes received so far, including those of incomplete events."""
        ...

    def __aiter__(self) -> AsyncIterator[Event]:
        """Iterate over the events, in order, until Kinesis ends the subscription: after five minutes or at the shard's end.

        Raises botocore's `EventStreamError` if Kinesis ended it with an error, `FrameError` for invalid bytes, and transport errors.
        """
        ...

    def close(self) -> None:
        """End the subscription. May be called at any time, repeatedly, and from any task. A waiting read then ends or raises."""
        ...


class Transport(Protocol):
    """Subscribes to shards."""

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota) -> EventStream:
        """Subscribe to a shard after `position` (None: at the tip, by Kinesis' clock). Raises `ClientError` if Kinesis rejects the call.

        Reserves space in `room` for an event of more than `room.share` bytes before reading it, and for a smaller event with records before
        returning it. The caller then owns the reservation. Raises `ValueError` for `SHARD_END`.
        """
        ...


class OpenedLater:
    """Opens a transport at the first call, and again if opening failed or was cancelled; implements `Transport`."""

    def __init__(self, opening: Callable[[], Awaitable[Transport]]) -> None:
        self._opening = opening
        self._lock = asyncio.Lock()
        self._opened: Transport | None = None

    async def subscribe(self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota) -> EventStream:
        # Concurrent calls must open only one transport: shards share its client, and the subscriptions to a shard share one `Pace`.
        async with self._lock:
            if self._opened is None:
                self._opened = await self._opening()
        return await self._opened.subscribe(stream, shard_id, position, room)


class BotoTransport:
    """Subscribes to shards with SubscribeToShard, through an aiobotocore client; implements `Transport`.

    The client must be created with `subscription_config`, for this transport only. The caller closes it.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        keep_answers(client, OPERATION, instead=_INITIAL_RESPONSE)

    async def subscribe(
        self, stream: StreamRef, shard_id: str, position: Position | None, room: Quota
    ) -> BotoEventStream:
        response = await self._client.subscribe_to_shard(
            ConsumerARN=stream.consumer_arn, ShardId=shard_id, StartingPosition=starting_position(position)
        )
        return BotoEventStream(response[RAW_BODY], room)


class BotoEventStream:
    """The body of one SubscribeToShard response over HTTP/1.1 (aiohttp) or HTTP/2. The headers have already been received.

    Once the length of a large frame has arrived, reading from the socket pauses until buffer space has been reserved for the whole frame.
    """

    def __init__(self, body: Any, room: Quota) -> None:
        self.received = 0
        self._body = body
        self._room = room
        # With HTTP/2, the window limits how much arrives while nothing is read. With HTTP/1.1, reading from the socket has to be paused.
        connection = getattr(body, "connection", None)
        self._socket = connection.transport if connection is not None else None
        self._has_room = False
        self._closed = False
        self._decoder = FrameDecoder()
        self._payloads: deque[bytes] = deque()
        self._fault: Exception | None = None

    @property
    def http(self) -> HttpFacts:
        """The HTTP and TLS versions of the connection."""
        if isinstance(self._body, Response):
            return self._body.facts
        security = self._socket.get_extra_info("ssl_object") if self._socket is not None else None
        return HttpFacts("HTTP/1.1", tls_version(security))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        # Raise an error only after all events that arrived before the error have been returned.
        while not self._payloads:
            if self._fault:
                raise self._fault
            if self._closed:
                raise StopAsyncIteration
            if not self._has_room and self._decoder.awaited > self._room.share:
                await self._find_room(self._decoder.awaited)
                if isinstance(self._body, Response):
                    self._body.expect(self._decoder.missing)
                self._decoder.collect()
                continue
            chunk = await self._body.content.readany()
            if not chunk:
                self._decoder.finish()
                raise StopAsyncIteration
            self.received += len(chunk)
            try:
                for frame in self._decoder.feed(chunk):
                    self._take(frame)
            except (FrameError, EventStreamError) as fault:
                self._fault = fault
        payload = self._payloads.popleft()
        head = read_head(payload)
        if head.records and not self._has_room:
            await self._find_room(len(payload))
        self._has_room = False
        return Event(payload, head)

    async def _find_room(self, size: int) -> None:
        if not self._room.try_reserve(size):
            if self._socket is not None and not self._socket.is_closing():
                self._socket.pause_reading()
            try:
                await self._room.reserve(size)
            finally:
                if self._socket is not None and not self._socket.is_closing():
                    self._socket.resume_reading()
        self._has_room = True

    def _take(self, frame: Frame) -> None:
        match frame.headers.get(":message-type"), frame.headers.get(":event-type"):
            case "event", "SubscribeToShardEvent":
                self._payloads.append(frame.payload)
            case "event", str():
                # Ignore the initial response, which is empty, and unknown event types.
                pass
            case "event", kind:
                # An event whose type is not a string may contain records, which must not be skipped.
                raise FrameError(f"an event has the :event-type {kind!r}, so its contents are unknown")
            case "exception", _:
                raise _stream_error(str(frame.headers.get(":exception-type")), _message(frame.payload))
            case "error", _:
                code, message = frame.headers.get(":error-code"), frame.headers.get(":error-message")
                raise _stream_error(str(code), str(message))
            case kind, _:
                raise FrameError(f"a frame has the unknown :message-type {kind!r}")

    def close(self) -> None:
        self._closed = True
        self._body.close()


def starting_position(position: Position | None) -> dict[str, Any]:
    """Convert a position to SubscribeToShard's `StartingPosition`. None becomes `LATEST`. Raises `ValueError` for `SHARD_END` and for a
    time outside the years 1 to 9999."""
    if position is None:
        return {"Type": "LATEST"}
    match position.kind:
        case PositionKind.TRIM_HORIZON:
            return {"Type": "TRIM_HORIZON"}
        case PositionKind.AT_TIMESTAMP:
            return {"Type": "AT_TIMESTAMP", "Timestamp": as_time(position.value)}
        case PositionKind.AFTER:
            return {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(position.value)}
        case PositionKind.INSIDE:
            return {"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": str(position.value)}
    raise ValueError("a shard cannot be read after SHARD_END")


def as_time(epoch_ms: int) -> datetime:
    """Convert epoch milliseconds to a `datetime`, as botocore requires. Raises `ValueError` outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(epoch_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"AT_TIMESTAMP:{epoch_ms} is outside the years that a request can contain") from None


def _stream_error(code: str, message: str) -> EventStreamError:
    return EventStreamError({"Error": {"Code": code, "Message": message}}, OPERATION)


def _message(payload: bytes) -> str:
    try:
        body = msgspec.json.decode(payload)
        return str(body.get("message", body.get("Message", "")))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError):
        return repr(payload[:200])
