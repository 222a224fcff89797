"""Takes request and response bodies past botocore's serializers and parsers, which cost more than the rest of a call.

The SDK still handles endpoints, signing, credentials and errors. The events used here are not a documented interface:
aiobotocore is pinned, and the tests of the callers show when it changes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
import aiohttp.payload

RAW_BODY: Final = "KinesisEfoBody"
"""The key under which a response holds its raw body, once `keep_answers` was called for the operation."""

_REQUEST_BODY: Final = "kinesis_efo.body"


class Chunks:
    """Replaces the body of an event stream for aiobotocore, which insists on reading the initial response."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.content = self

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        """See `aiohttp.StreamReader`."""
        for chunk in self._chunks:
            yield chunk, True


def keep_answers(client: Any, operation: str, instead: bytes | Chunks = b"{}") -> None:
    """Keep the bodies of successful answers unparsed, as `RAW_BODY` in the response.

    Args:
        client: An aiobotocore `kinesis` client.
        operation: Name in the API reference.
        instead: What botocore parses in their place.
    """

    def keep(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
        if response_dict["status_code"] < 300:
            customized_response_dict[RAW_BODY] = response_dict["body"]
            response_dict["body"] = instead

    client.meta.events.register(f"before-parse.kinesis.{operation}", keep, unique_id=f"kinesis-efo-{operation}")


@contextmanager
def closed_where_it_fails(client: Any, operation: str) -> Iterator[None]:
    """Close the streams that an operation opens in the body, where the body fails: the SDK leaves those open that it cannot parse.

    Args:
        client: An aiobotocore `kinesis` client.
        operation: Name in the API reference; its answer is a stream.
    """
    opened: list[Any] = []

    def remember(response_dict: dict[str, Any], **_: Any) -> None:
        opened.append(response_dict["body"])

    event, name = f"before-parse.kinesis.{operation}", f"kinesis-efo-close-{operation}"
    client.meta.events.register_first(event, remember, unique_id=name)
    try:
        yield
    except BaseException:
        for body in opened:
            if hasattr(body, "close"):
                body.close()
        raise
    finally:
        client.meta.events.unregister(event, unique_id=name)


def send_as_is(client: Any, operation: str, parameter: str) -> None:
    """Send one parameter, encoded JSON, as the whole body of a request.

    Args:
        client: An aiobotocore `kinesis` client, without parameter validation.
        operation: Name in the API reference.
        parameter: The parameter that callers give as bytes. The others still determine the endpoint.
    """

    def set_aside(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        context[_REQUEST_BODY] = params.pop(parameter)

    events = client.meta.events
    events.register(f"before-parameter-build.kinesis.{operation}", set_aside)
    events.register(f"before-call.kinesis.{operation}", _use_body)
    events.register(f"before-send.kinesis.{operation}", _send_whole)


def _use_body(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    params["body"] = context[_REQUEST_BODY]


class _Body(aiohttp.BytesPayload):
    """A body in memory, of any size. Above 1 MiB, aiohttp warns (ResourceWarning) and asks for a file, which it would read
    piecemeal through a thread pool."""

    def __init__(self, value: bytes) -> None:
        aiohttp.payload.Payload.__init__(self, value, content_type="application/x-amz-json-1.1")
        self._size = len(value)


def _send_whole(request: Any, **_: Any) -> None:
    # The request is signed by now: only aiohttp still looks at the body.
    request.body = _Body(request.body)
