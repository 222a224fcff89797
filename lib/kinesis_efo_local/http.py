"""Requests and answers in the server, independent of the version of HTTP."""

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
    """A request, read to its end.

    `path` is the path and query as sent, still escaped. `headers` lack the pseudo-headers of HTTP/2; the host is always `Host`. `body` is
    still encoded if it was sent so.
    """

    method: str
    path: str
    headers: CIMultiDict[str] | CIMultiDictProxy[str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    `headers` lack those that concern one connection, and have `Content-Length` only for HEAD, whose body is empty.
    `body` may be the push that writes it.
    """

    status: int
    headers: Iterable[tuple[str, str]]
    body: bytes | Push


Answerer = Callable[[Incoming], Awaitable[Answer]]


def cut(transport: asyncio.BaseTransport, *, reset: bool) -> None:
    """Cut a connection with a RST, or with a FIN behind what was written."""
    assert isinstance(transport, asyncio.Transport)
    raw = transport.get_extra_info("socket")
    if reset and raw is not None:
        # With a linger time of zero, the kernel sends RST on closing.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()
    else:
        transport.close()
