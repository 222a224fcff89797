"""The server: answers Kinesis requests from memory, and forwards all other requests to moto."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from calendar import timegm
from collections.abc import Mapping
from email.utils import formatdate
from time import gmtime, strftime, strptime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from . import api, traits
from .cbor import CBOR, encode, from_json, to_json
from .data_directory import KeptAccount
from .errors import AwsError
from .fault_injection import FaultInjection, Request
from .http import Answer, Incoming
from .moto_proxy import MotoProxy
from .protocols import error_answer
from .sequence import Ticks
from .settings import Settings
from .state import Clock, Kinesis
from .subscribe import Push, open_subscription
from .validation import check
from .wire import EVENT_STREAM
from .writing import PutRecord, PutRecords, put_record, put_records

logger = logging.getLogger(__name__)
T = TypeVar("T")
TARGET = "Kinesis_20131202."
OPERATIONS = {**api.OPERATIONS, **traits.OPERATIONS}
KNOWN = {*OPERATIONS, "PutRecord", "PutRecords", "SubscribeToShard"}
JSON = "application/x-amz-json-1.1"
_SCOPE = re.compile(r"Credential=[^/,]+/\d{8}/([^/]+)/([^/]+)/aws4_request")

# Pattern for accepted host names: this machine, optionally with an S3 bucket before the name; and amazonaws.com, for clients that use this
# server as a proxy. An attacker's web page cannot be served under such a name, which prevents DNS rebinding.
LOOPBACK = re.compile(
    r"(.+\.)?(localhost(\.localdomain)?|local-aws|amazonaws\.com(\.cn)?)|(.+\.)?127\.\d+\.\d+\.\d+|::1|host\.docker\.internal"
)
_FORM = "%Y%m%dT%H%M%SZ"
_OTHERS = 3
"""Factor for `Settings.signature_seconds` for STS, S3 and others, which accept a signature for longer than Kinesis and DynamoDB."""


class Server:
    """Answers requests, on one event loop.

    `moto` handles requests for services other than Kinesis; `clock` provides all times of Kinesis. Unless `any_host` is set,
    requests are rejected if their `Host` header does not match `LOOPBACK`.
    """

    def __init__(
        self, settings: Settings, faults: FaultInjection, clock: Clock, moto: MotoProxy, *, any_host: bool = False
    ) -> None:
        self._settings = settings
        self._any_host = any_host
        self._faults = faults
        self._clock = clock
        self._ticks = Ticks()
        self._regions: dict[str, Kinesis] = {}
        self._moto = moto
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.kinesis(settings.region)

    def kinesis(self, region: str) -> Kinesis:
        """The state of Kinesis in a region."""
        if region not in self._regions:
            self._regions[region] = Kinesis(self._settings, region, self._clock, self._ticks)
        return self._regions[region]

    def keep(self) -> KeptAccount:
        """Return the Kinesis data to store in a data directory."""
        regions = {name: kinesis.keep() for name, kinesis in self._regions.items()}
        return KeptAccount(self._settings.account_id, self._ticks.last, regions)

    def restore(self, kept: KeptAccount) -> None:
        """Restore the Kinesis data from a data directory."""
        # Sequence numbers must keep growing even if the clock was set back in the meantime.
        self._ticks.last = kept.last_tick
        for name, region in kept.regions.items():
            self.kinesis(name).restore(region)

    async def close(self) -> None:
        """Cancel all timers and stop moto."""
        for timer in self._timers.values():
            timer.cancel()
        await self._moto.close()

    async def answer(self, request: Incoming) -> Answer:
        """Answer a request. If the answer's body is a `Push`, the caller must close it."""
        target = request.headers.get("X-Amz-Target", "")
        scope = _SCOPE.search(request.headers.get("Authorization", ""))
        region, service = scope.groups() if scope else (self._settings.region, "")
        try:
            self._refuse_pages(request)
        except AwsError as error:
            return error_answer(request, service, error)
        if target.startswith(TARGET):
            return await self._kinesis(request, target.removeprefix(TARGET), self.kinesis(region))
        params = _json_or_empty(request.body) if target else {}
        try:
            self._check_time(request, service)
            await self._faults.before(Request(service, target.rpartition(".")[2], params))
            return await self._moto.forward(request, service)
        except AwsError as error:
            return error_answer(request, service, error)

    async def _kinesis(self, request: Incoming, operation: str, kinesis: Kinesis) -> Answer:
        request_id = str(uuid.uuid4())
        cbor = CBOR in request.headers.get("Content-Type", "").lower()
        shown: Mapping[str, Any] = {}
        try:
            body = to_json(request.body) if cbor else request.body
            self._check_time(request, "kinesis")
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
                push = Push(kinesis, subscription, self._faults, cbor=cbor)
                return Answer(200, self._headers(EVENT_STREAM, request_id), push)
            if operation == "PutRecords":
                answer = put_records(kinesis, call)
            elif operation == "PutRecord":
                answer = put_record(kinesis, call)
            elif operation in OPERATIONS:
                answer = OPERATIONS[operation](kinesis, call)
            else:
                logger.warning("the local Kinesis does not know the operation %r", operation)
                raise AwsError(
                    "UnknownOperationException",
                    f"The local Kinesis does not know the operation {operation!r}; it knows {', '.join(sorted(KNOWN))}.",
                )
        except AwsError as error:
            kinesis.remember(operation, shown, error.code)
            return self._error_answer(error, request_id, cbor=cbor)
        kinesis.remember(operation, shown, "ok")
        self._wake_later(kinesis)
        content = answer if isinstance(answer, bytes) else msgspec.json.encode(answer) if answer else b""
        if cbor:
            return Answer(200, self._headers(CBOR, request_id), from_json(operation, content))
        return Answer(200, self._headers(JSON, request_id), content)

    def _refuse_pages(self, request: Incoming) -> None:
        """Reject requests from web pages: without signature checks, any page in a browser on this machine could call this server."""
        site = request.headers.get("Sec-Fetch-Site", "none")
        if "Origin" in request.headers or site != "none":
            raise AwsError("AccessDenied", "the local AWS does not answer web pages; call it from a program", 403)
        host = (urlsplit(f"//{request.headers.get('Host', '')}").hostname or "localhost").lower()
        if not (self._any_host or LOOPBACK.fullmatch(host)):
            raise AwsError(
                "AccessDenied",
                f"the local AWS is called {host[:100]!r}, which may be the name of a web page; call it localhost or 127.0.0.1, or start it "
                "with --host",
                403,
            )

    def _check_time(self, request: Incoming, service: str) -> None:
        """Reject a request if its signature time differs too much from the server's clock, as AWS does.

        Raises AwsError with the code and wording of AWS.
        """
        try:
            signed = timegm(strptime(request.headers.get("X-Amz-Date", ""), _FORM))
        except ValueError:
            return
        json, now = "X-Amz-Target" in request.headers, self._clock.time()
        seconds = self._settings.signature_seconds * (1 if json else _OTHERS)
        if abs(signed - now) <= seconds:
            return
        if service == "s3":
            raise AwsError(
                "RequestTimeTooSkewed",
                "The difference between the request time and the current time is too large.",
                403,
            )
        early = signed < now
        bound = now - seconds if early else now + seconds
        what = (
            "Signature expired: {} is now earlier than {}"
            if early
            else "Signature not yet current: {} is still later than {}"
        )
        message = (
            f"{what.format(_text(signed), _text(bound))} ({_text(now)} {'-' if early else '+'} {seconds / 60:.0f} min.)"
        )
        if json:
            raise AwsError("InvalidSignatureException", message)
        raise AwsError("SignatureDoesNotMatch", message, 403)

    def _headers(self, content_type: str, request_id: str) -> list[tuple[str, str]]:
        return [
            ("Content-Type", content_type),
            ("Date", formatdate(self._clock.time(), usegmt=True)),
            ("x-amzn-RequestId", request_id),
        ]

    def _error_answer(self, error: AwsError, request_id: str, *, cbor: bool) -> Answer:
        shape = {"__type": error.code, "message": error.message}
        headers = [*self._headers(CBOR if cbor else JSON, request_id), ("x-amzn-ErrorType", error.code)]
        return Answer(error.status, headers, encode(shape) if cbor else msgspec.json.encode(shape))

    def _wake_later(self, kinesis: Kinesis) -> None:
        """Carry out all due actions, and set a timer for the next action."""
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


def _text(epoch: float) -> str:
    return strftime(_FORM, gmtime(epoch))
