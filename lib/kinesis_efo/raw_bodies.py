"""Bodies of requests and answers past botocore's serializers and parsers, which cost more than all the rest of a call.

Endpoints, signing, credentials and errors stay the SDK's. The events that this hooks into are not a documented interface:
aiobotocore is pinned, and the tests of those who use this module say when it changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import aiohttp.payload

RAW_BODY: Final = "KinesisEfoBody"
"""Where a response holds its body, once `keep_answers` was called for the operation."""

_REQUEST_BODY: Final = "kinesis_efo.body"


class Chunks:
    """Stands in for the body of an event stream where aiobotocore looks for the initial response, which it insists on reading."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.content = self

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        """See `aiohttp.StreamReader`."""
        for chunk in self._chunks:
            yield chunk, True


def keep_answers(client: Any, operation: str, instead: bytes | Chunks = b"{}") -> None:
    """Have successful answers handed over as they come: as `RAW_BODY` in the response.

    Args:
        client: An aiobotocore `kinesis` client.
        operation: As in the API reference.
        instead: What botocore parses in their place.
    """

    def keep(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
        if response_dict["status_code"] < 300:
            customized_response_dict[RAW_BODY] = response_dict["body"]
            response_dict["body"] = instead

    client.meta.events.register(f"before-parse.kinesis.{operation}", keep, unique_id=f"kinesis-efo-{operation}")


def send_as_is(client: Any, operation: str, parameter: str) -> None:
    """Have a parameter taken for the whole body of a request, as JSON that is written already.

    Args:
        client: An aiobotocore `kinesis` client, without parameter validation.
        operation: As in the API reference.
        parameter: The one that callers give as bytes; the others still say where the request goes.
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
    """A body that is in memory anyway. aiohttp warns (ResourceWarning) of those above 1 MiB and asks for a file, which it
    would read piecemeal through a thread pool."""

    def __init__(self, value: bytes) -> None:
        aiohttp.payload.Payload.__init__(self, value, content_type="application/x-amz-json-1.1")
        self._size = len(value)


def _send_whole(request: Any, **_: Any) -> None:
    # Signed by now: nobody but aiohttp looks at the body any more.
    request.body = _Body(request.body)
