"""The HTTP endpoint: answers Kinesis requests from the state in memory, and forwards everything else to moto."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from . import api, traits
from .errors import AwsError
from .fault_injection import FaultInjection, Request
from .moto_proxy import MotoProxy
from .sequence import Ticks
from .settings import Settings
from .state import Clock, Kinesis
from .subscribe import Push, open_subscription
from .validation import check
from .writing import PutRecord, PutRecords, put_record, put_records

T = TypeVar("T")
TARGET = "Kinesis_20131202."
OPERATIONS = {**api.OPERATIONS, **traits.OPERATIONS}
KNOWN = {*OPERATIONS, "PutRecord", "PutRecords", "SubscribeToShard"}
JSON = "application/x-amz-json-1.1"
_SCOPE = re.compile(r"Credential=[^/,]+/\d{8}/([^/]+)/([^/]+)/aws4_request")
MAX_BODY = 64 * 1024 * 1024


class Server:
    """Answers requests, on one event loop.

    Args:
        settings: Behaviour.
        faults: Faults to inject.
        clock: Source of all times of Kinesis.
    """

    def __init__(self, settings: Settings, faults: FaultInjection, clock: Clock) -> None:
        self._settings = settings
        self._faults = faults
        self._clock = clock
        self._ticks = Ticks()
        self._regions: dict[str, Kinesis] = {}
        self._moto = MotoProxy(settings.region)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._pushing: set[asyncio.Task[Any]] = set()
        self.kinesis(settings.region)

    def kinesis(self, region: str) -> Kinesis:
        """The state of Kinesis in a region."""
        if region not in self._regions:
            self._regions[region] = Kinesis(self._settings, region, self._clock, self._ticks)
        return self._regions[region]

    def app(self) -> web.Application:
        """The application to serve."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def close(self) -> None:
        """End open subscriptions, timers and moto."""
        for timer in self._timers.values():
            timer.cancel()
        pushing = tuple(self._pushing)
        for task in pushing:
            task.cancel()
        await asyncio.gather(*pushing, return_exceptions=True)
        await self._moto.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        target = request.headers.get("X-Amz-Target", "")
        scope = _SCOPE.search(request.headers.get("Authorization", ""))
        region, service = scope.groups() if scope else (self._settings.region, "")
        if target.startswith(TARGET):
            return await self._kinesis(request, target.removeprefix(TARGET), self.kinesis(region))
        body = await request.read()
        try:
            await self._faults.before(
                Request(service, target.rpartition(".")[2], _json_or_empty(body) if target else {})
            )
            return await self._moto.forward(request, body)
        except AwsError as error:
            return _error_response(error, str(uuid.uuid4()))

    async def _kinesis(self, request: web.Request, operation: str, kinesis: Kinesis) -> web.StreamResponse:
        request_id = str(uuid.uuid4())
        shown: Mapping[str, Any] = {}
        try:
            body = await request.read()
            if "cbor" in request.content_type:
                raise AwsError(
                    "SerializationException",
                    "The local Kinesis speaks JSON; switch CBOR off in the client: AWS_CBOR_DISABLE=true, or in Java "
                    "-Daws.cborEnabled=false",
                )
            call: Any
            if operation == "PutRecords":
                call = _decode(body, PutRecords)
                shown = {"StreamName": call.stream_name, "StreamARN": call.stream_arn, "Records": len(call.records)}
            elif operation == "PutRecord":
                call = _decode(body, PutRecord)
                shown = {"StreamName": call.stream_name, "StreamARN": call.stream_arn, "PartitionKey": call.key}
            else:
                call = shown = {
                    name: value for name, value in _decode(body, dict[str, Any]).items() if value is not None
                }
                check(operation, call)
            await self._faults.before(Request("kinesis", operation, shown))
            kinesis.settle()
            if operation == "SubscribeToShard":
                subscription = open_subscription(kinesis, call)
                kinesis.remember(operation, shown, "ok")
                return await self._push(Push(kinesis, subscription, self._faults), request, request_id)
            if operation == "PutRecords":
                answer = put_records(kinesis, call)
            elif operation == "PutRecord":
                answer = put_record(kinesis, call)
            elif operation in OPERATIONS:
                answer = OPERATIONS[operation](kinesis, call)
            else:
                raise AwsError(
                    "UnknownOperationException",
                    f"The local Kinesis does not know the operation {operation!r}; it knows {', '.join(sorted(KNOWN))}.",
                )
        except AwsError as error:
            kinesis.remember(operation, shown, error.code)
            return _error_response(error, request_id)
        kinesis.remember(operation, shown, "ok")
        self._wake_later(kinesis)
        content = answer if isinstance(answer, bytes) else msgspec.json.encode(answer) if answer else b""
        return web.Response(body=content, headers={"Content-Type": JSON, "x-amzn-RequestId": request_id})

    async def _push(self, push: Push, request: web.Request, request_id: str) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._pushing.add(task)
        try:
            return await push.run(request, request_id)
        finally:
            self._pushing.discard(task)

    def _wake_later(self, kinesis: Kinesis) -> None:
        """Carry out due actions, and set a timer for the next one."""
        due = kinesis.settle()
        before = self._timers.pop(kinesis.region, None)
        if before is not None:
            before.cancel()
        if due is not None:
            delay = max(0.001, due - kinesis.now().monotonic)
            self._timers[kinesis.region] = asyncio.get_running_loop().call_later(delay, self._wake_later, kinesis)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise AwsError("SerializationException", f"The request is not valid: {wrong}") from None


def _json_or_empty(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _error_response(error: AwsError, request_id: str) -> web.Response:
    return web.Response(
        status=error.status,
        body=msgspec.json.encode({"__type": error.code, "message": error.message}),
        headers={"Content-Type": JSON, "x-amzn-RequestId": request_id, "x-amzn-ErrorType": error.code},
    )
