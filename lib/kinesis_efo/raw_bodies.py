"""Bypasses botocore's serialization and parsing of request and response bodies, which take more CPU time than the rest of a call.

The SDK still handles endpoints, signing, credentials and errors. Boto3's and botocore's guides describe the events that are used here
(https://docs.aws.amazon.com/boto3/latest/guide/events.html, https://docs.aws.amazon.com/botocore/latest/topics/events.html).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from io import BytesIO
from typing import Any, Final

from aiobotocore.awsrequest import AioAWSResponse
from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientPayloadError, ServerDisconnectedError
from botocore.client import BaseClient
from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

RAW_BODY: Final = "KinesisEfoBody"
"""The key of the raw body in an operation's result, if `keep_answers` was called for the operation."""

_BODY: Final = "kinesis_efo.body"
_TIMES_READ: Final = 4
"""Time limit for a whole response that is not a stream, as a multiple of the read timeout."""
_MOST_BODY: Final = 8 << 20
"""Maximum bytes of a response that is neither a stream nor from GetRecords. Pages of DynamoDB and list operations have about 1 MB."""
_MOST_RECORDS: Final = 64 << 20
"""Maximum bytes of a GetRecords response, which has up to 10 MiB of records, encoded in base64."""


class Instead:
    """A body that the SDK parses in place of the real one. It has the interface of aiohttp's response."""

    def __init__(self, chunk: bytes, kept: Any) -> None:
        self._chunk = chunk
        self.content = self
        self.close = kept.close

    async def read(self) -> bytes:
        return self._chunk

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Yield the bytes, like `aiohttp.StreamReader`. The SDK calls this to read the first event of an event stream."""
        yield self._chunk, True


class HttpSession:
    """aiobotocore's HTTP session, for `AioConfig(http_session_cls=...)`, with support for `keep_answers`."""

    def __init__(self, *, socket_factory: Callable[..., socket.socket] | None = None, **arguments: Any) -> None:
        if socket_factory is not None:
            connector = arguments.get("connector_args") or {}
            arguments["connector_args"] = {**connector, "socket_factory": socket_factory}
        self._http1: Any = AIOHTTPSession(**arguments)
        # Limit the whole response: the SDK limits only the time between two bytes, so a response that trickles in could take forever.
        self._whole_seconds = _TIMES_READ * arguments["timeout"][1]
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> HttpSession:
        await self._closing.enter_async_context(self._http1)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._closing.aclose()

    async def close(self) -> None:
        """Close all connections. Later calls do nothing."""
        await self.__aexit__(None, None, None)

    async def send(self, request: Any) -> AioAWSResponse:
        """Send a request, like aiobotocore's session. After `keep_answers`, return a placeholder with the real response in `kept`."""
        answer = request.answer = await self._answer(request)
        if (instead := getattr(request, "instead", None)) is None or answer.status_code >= 300:
            return answer
        shown = AioAWSResponse(answer.url, answer.status_code, answer.headers, Instead(instead, answer.raw))
        shown.kept = answer
        return shown

    async def _answer(self, request: Any) -> AioAWSResponse:
        if request.stream_output:
            return await self.exchange(request)
        request.stream_output = True  # otherwise the SDK would read a body of any size into memory
        target = str(request.headers.get("X-Amz-Target", b".GetRecords"))  # without this header, use the larger limit
        most = _MOST_RECORDS if target.rstrip("'").endswith(".GetRecords") else _MOST_BODY
        try:
            async with asyncio.timeout(self._whole_seconds):
                answer = await self.exchange(request)
                return AioAWSResponse(
                    answer.url, answer.status_code, answer.headers, Instead(await _body(answer.raw, most), answer.raw)
                )
        except TimeoutError as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from None
        except (ClientPayloadError, ServerDisconnectedError) as error:
            raise ConnectionClosedError(endpoint_url=request.url, request=request, error=error) from None

    async def exchange(self, request: Any) -> AioAWSResponse:
        """Send a request, and return the response unchanged."""
        return await self._http1.send(request)


async def _body(raw: Any, most: int) -> bytes:
    """Read the body of a response. Raises HTTPClientError if it has more than `most` bytes. Any error closes the response."""
    parts, size = [], 0
    try:
        while part := await raw.content.readany():
            parts.append(part)
            if (size := size + len(part)) > most:
                raise _too_long(str(raw.url), most)
    except BaseException:
        raw.close()
        raise
    return b"".join(parts)


def limit_bodies(base_classes: list[type], **_: Any) -> None:
    """Limit the size of responses that synchronous clients read as a whole. A handler of the event `creating-client-class`."""
    if base_classes[-1] is BaseClient:
        base_classes.insert(0, _LimitedClient)


class _LimitedClient:
    _endpoint: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._send = self._endpoint.http_session.send
        self._endpoint.http_session.send = self._send_limited

    def _send_limited(self, request: Any) -> Any:
        if request.stream_output:
            return self._send(request)
        request.stream_output = True  # otherwise the SDK would read a body of any size into memory
        answer = self._send(request)
        body = bytearray()
        try:
            for part in answer.raw.stream():
                body += part
                if len(body) > _MOST_BODY:
                    raise _too_long(request.url, _MOST_BODY)
        except BaseException as error:
            answer.raw.close()
            if isinstance(error, HTTPError):
                raise HTTPClientError(error=error) from None
            raise
        answer.raw = HTTPResponse(BytesIO(body), preload_content=False)  # the SDK then reads the bytes from memory
        return answer


def _too_long(url: str, most: int) -> HTTPClientError:
    return HTTPClientError(error=f"{url} sends more than {most >> 20} MiB, which AWS does not")


def keep_answers(client: Any, operation: str, instead: bytes = b"{}") -> None:
    """Make a client store the unparsed body of each successful response in the result, as `RAW_BODY`: bytes or, for event streams, the open
    response. The SDK parses `instead` in place of the body."""

    def mark(request: Any, **_: Any) -> None:
        request.instead = instead

    async def give(http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        if http_response.status_code < 300:
            kept = http_response.kept
            parsed[RAW_BODY] = kept.raw if model.has_event_stream_output else await kept.content

    client.meta.events.register(f"before-send.kinesis.{operation}", mark, unique_id=f"kinesis-efo-mark-{operation}")
    client.meta.events.register(f"after-call.kinesis.{operation}", give, unique_id=f"kinesis-efo-give-{operation}")


def send_as_is(client: Any, operation: str, parameter: str) -> None:
    """Make a client send `parameter`, which is encoded as JSON, as a request's whole body. Other parameters only determine the endpoint."""

    def set_aside(params: dict[str, Any], context: dict[str, Any], **_: Any) -> dict[str, Any]:
        context[_BODY] = params[parameter]
        return {name: value for name, value in params.items() if name != parameter}

    events = client.meta.events
    events.register(f"provide-client-params.kinesis.{operation}", set_aside)
    events.register(f"before-call.kinesis.{operation}", _use_body)
    events.register(f"before-send.kinesis.{operation}", _send_whole)


def send_exact_times(serializer_kwargs: dict[str, Any], **_: Any) -> None:
    """Make botocore send times with milliseconds; older versions truncate them. A handler of the event `creating-serializer`."""
    serializer_kwargs["timestamp_precision"] = "millisecond"


def _use_body(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    params["body"] = context[_BODY]


def _send_whole(request: Any, **_: Any) -> None:
    """Make aiohttp send the body in one piece. Otherwise, aiohttp warns about bytes above 1 MiB, and reads files piece by piece in threads.

    The Content-Length header, which is already signed, does not change.
    """

    async def whole(body: bytes) -> AsyncIterator[bytes]:
        yield body

    request.body = whole(request.body)
