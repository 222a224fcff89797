"""The local Kinesis without a network: a client like aiobotocore's, down to the bytes of a response, in virtual time.

State, push loop and frames are the local Kinesis' own; only sockets are missing. The library's `BotoTransport` and `Topology`
use `MemoryClient` as they use aiobotocore's client.
"""

import asyncio
import base64
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

from aiohttp import ClientConnectionError, ClientOSError, ClientPayloadError
from botocore.exceptions import ClientError

from kinesis_efo.raw_bodies import RAW_BODY
from kinesis_efo_local import AwsError, NoFaults, Request, Settings
from kinesis_efo_local.fault_injection import FaultInjection
from kinesis_efo_local.sequence import Ticks
from kinesis_efo_local.server import OPERATIONS
from kinesis_efo_local.state import Clock, Kinesis
from kinesis_efo_local.subscribe import Push, Wire, open_subscription
from kinesis_efo_local.validation import check
from kinesis_efo_local.writing import PutRecord, put_record

HIGH_WATER = 128 << 10
"""Size of the sockets' buffers, bytes: the server can write so much to a client that does not read."""


class MemoryKinesis:
    """Kinesis in one region.

    Args:
        settings: Settings of the local AWS.
        clock: Virtual time.
        faults: Injects faults.

    Attributes:
        listing_age: ListShards shows the shards as they were this many seconds ago.
        filter_age: The same for the shards that were open at a time.
        late_starts: An iterator for a time begins at the first record of this many seconds later: Kinesis finds times inexactly.
    """

    def __init__(self, settings: Settings, clock: Clock, faults: FaultInjection | None = None) -> None:
        self.state = Kinesis(settings, settings.region, clock, Ticks())
        self.faults = faults or NoFaults()
        self.listing_age = self.filter_age = 0.0
        self.late_starts = 0.0

    def call(self, operation: str, **params: Any) -> Any:
        """Call any operation but SubscribeToShard and PutRecord, without faults.

        Raises:
            AwsError: Kinesis refuses.
        """
        self.state.settle()
        if "Timestamp" in params:
            latest = max(params["Timestamp"], self.state.now().wall)
            params["Timestamp"] = min(params["Timestamp"] + self.late_starts, latest)
        if self.filter_age and "Timestamp" in (only := params.get("ShardFilter", {})):
            only["Timestamp"] = min(only["Timestamp"], self.state.now().wall - self.filter_age)
        answer = OPERATIONS[operation](self.state, params)
        if operation == "ListShards" and self.listing_age:
            answer["Shards"] = [self._as_it_was(shown) for shown in answer["Shards"] if not self._is_new(shown)]
        return answer

    def _shard(self, shown: dict[str, Any]) -> Any:
        name = shown["ShardId"]
        return next(stream.shards[name] for stream in self.state.streams.values() if name in stream.shards)

    def _is_new(self, shown: dict[str, Any]) -> bool:
        return bool(self._shard(shown).created_at > self.state.now().wall - self.listing_age)

    def _as_it_was(self, shown: dict[str, Any]) -> dict[str, Any]:
        closed_at = self._shard(shown).closed_at
        if closed_at is not None and closed_at > self.state.now().wall - self.listing_age:
            numbers = {"StartingSequenceNumber": shown["SequenceNumberRange"]["StartingSequenceNumber"]}
            return {**shown, "SequenceNumberRange": numbers}
        return shown

    def put(self, stream: str, key: str, data: bytes) -> str:
        """Put a record; returns the id of its shard."""
        self.state.settle()
        record = PutRecord(base64.b64encode(data).decode(), key, stream_name=stream)
        return str(put_record(self.state, record)["ShardId"])


class MemoryClient:
    """The part of an aiobotocore `kinesis` client that the library uses.

    Args:
        kinesis: Answers the calls.

    Attributes:
        bodies: Bodies of open subscriptions, and of some that have ended.
        way_back: Seconds that an answer takes.
    """

    def __init__(self, kinesis: MemoryKinesis, way_back: float = 0.0) -> None:
        self._kinesis = kinesis
        self.way_back = way_back
        self._listeners: dict[str, list[Callable[..., None]]] = defaultdict(list)
        self.bodies: set[MemoryBody] = set()
        self.meta = SimpleNamespace(events=SimpleNamespace(register=self._register))

    def _register(self, event: str, listener: Callable[..., None], **_: object) -> None:
        self._listeners[event].append(listener)

    async def list_shards(self, **params: Any) -> Any:
        return await self._call("ListShards", params)

    async def describe_stream_summary(self, **params: Any) -> Any:
        answer = await self._call("DescribeStreamSummary", params)
        summary = answer["StreamDescriptionSummary"]
        # As botocore parses it.
        created = datetime.fromtimestamp(summary["StreamCreationTimestamp"], UTC)
        return {"StreamDescriptionSummary": {**summary, "StreamCreationTimestamp": created}}

    async def describe_stream_consumer(self, **params: Any) -> Any:
        return await self._call("DescribeStreamConsumer", params)

    async def get_shard_iterator(self, **params: Any) -> Any:
        return await self._call("GetShardIterator", params)

    async def get_records(self, **params: Any) -> Any:
        return {RAW_BODY: await self._call("GetRecords", params)}

    async def subscribe_to_shard(self, **params: Any) -> Any:
        return await self._call("SubscribeToShard", params)

    async def _call(self, operation: str, params: dict[str, Any]) -> Any:
        """Answer a call, and tell those who follow the calls of all operations about it, with the service's time as it tells it."""
        context: dict[str, Any] = {}
        for listener in self._listeners["request-created.kinesis"]:
            listener(request=SimpleNamespace(context=context))
        try:
            return await self._answer(operation, params)
        finally:
            headers = {"x-amzn-requestid": "1", "date": formatdate(self._kinesis.state.now().wall, usegmt=True)}
            if self.way_back:
                await asyncio.sleep(self.way_back)
            for listener in self._listeners["after-call.kinesis"]:
                listener(parsed={"ResponseMetadata": {"HTTPHeaders": headers}}, context=context)

    async def _answer(self, operation: str, params: dict[str, Any]) -> Any:
        kinesis = self._kinesis
        wire_params = _as_sent(params)
        try:
            check(operation, wire_params)
            await kinesis.faults.before(Request("kinesis", operation, wire_params))
            await asyncio.sleep(0.005)
            if operation != "SubscribeToShard":
                return kinesis.call(operation, **wire_params)
            kinesis.state.settle()
            subscription = open_subscription(kinesis.state, wire_params)
        except AwsError as error:
            raise ClientError(
                {
                    "Error": {"Code": error.code, "Message": error.message},
                    "ResponseMetadata": {"HTTPStatusCode": error.status},  # type: ignore[typeddict-item]
                },
                operation,
            ) from None
        body = MemoryBody(Push(kinesis.state, subscription, kinesis.faults))
        self.bodies = {each for each in self.bodies if not each.over} | {body}
        return {RAW_BODY: body}


class MemoryBody(Wire):
    """The body of one response, with the methods of aiohttp's: `content.readany()` and `close()`.

    Args:
        push: Writes the body.
    """

    def __init__(self, push: Push) -> None:
        self.content = self
        self._buffer = bytearray()
        self._end: Exception | None = None
        self._ended = self._closed = False
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._serve(push))

    @property
    def over(self) -> bool:
        return self._task.done()

    # -- the client's side

    async def readany(self) -> bytes:
        while True:
            if self._closed:
                raise ClientConnectionError("Connection closed")
            if self._buffer:
                taken = bytes(self._buffer)
                self._buffer.clear()
                self._notify()
                return taken
            if self._end is not None:
                raise self._end
            if self._ended:
                return b""
            await self._changed.wait()

    def close(self) -> None:
        self._closed = True
        self._task.cancel()
        self._notify()

    # -- the server's side

    async def write(self, data: bytes) -> None:
        self._buffer += data
        self._notify()
        while len(self._buffer) > HIGH_WATER:
            await self._changed.wait()

    def cut(self, *, reset: bool) -> None:
        if reset:
            # A reset connection loses what was not read yet.
            self._buffer.clear()
            self._end = ClientOSError(104, "Connection reset by peer")
        else:
            self._end = ClientPayloadError("Response payload is not completed")

    async def _serve(self, push: Push) -> None:
        try:
            if await push.send(self):
                self._ended = True
        except TimeoutError:
            self.cut(reset=True)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _as_sent(params: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.timestamp()
        if isinstance(value, datetime)
        else _as_sent(value)
        if isinstance(value, dict)
        else value
        for name, value in params.items()
    }
