"""Requests and responses of the server, independent of the HTTP version."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from multidict import CIMultiDict, CIMultiDictProxy

from .subscribe import Push

_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A complete request.

    `path` is the path and query as sent, still escaped. `headers` does not contain HTTP/2 pseudo-headers; the host is always in `Host`.
    `body` is as sent, so it may be compressed.
    """

    method: str
    path: str
    headers: CIMultiDict[str] | CIMultiDictProxy[str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    `headers` contains no hop-by-hop headers, and `Content-Length` only in response to HEAD, whose body is empty.
    `body` is a `Push` if the response is an event stream.
    """

    status: int
    headers: Iterable[tuple[str, str]]
    body: bytes | Push


Answerer = Callable[[Incoming], Awaitable[Answer]]


def cut(transport: asyncio.BaseTransport, *, reset: bool) -> None:
    """Close a connection: immediately with a RST if `reset`, else with a FIN once all data written so far is sent."""
    assert isinstance(transport, asyncio.Transport)
    raw = transport.get_extra_info("socket")
    if reset and raw is not None:
        # With a linger time of zero, the kernel sends RST on closing.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()
    else:
        transport.close()
