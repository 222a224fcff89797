"""Forwards requests for services other than Kinesis to a moto server in this process, started at the first such request.

moto keeps one state per process; the proxy resets it when it starts and closes.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp
import yarl

from .errors import AwsError
from .http import Answer, Incoming

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

# Headers that concern one connection and must not be forwarded; lengths are computed anew.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "upgrade", "te", "trailer"}


def _nothing(_url: str) -> None:
    pass


class MotoProxy:
    """Forwards requests to moto.

    Args:
        began: Called with moto's URL before its first request, in a thread.
        ending: Called with it after its last request, in a thread.
    """

    def __init__(self, began: Callable[[str], None] = _nothing, ending: Callable[[str], None] = _nothing) -> None:
        self._began = began
        self._ending = ending
        self._server: ThreadedMotoServer | None = None
        self._session: aiohttp.ClientSession | None = None
        self._url = ""
        self._starting = asyncio.Lock()
        # DynamoDB's conditional writes are atomic, but moto checks and writes in two steps.
        self._one_at_a_time = asyncio.Lock()
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._closing = False

    async def forward(self, request: Incoming) -> Answer:
        """Forward a request, and return moto's response. It is carried out even if its client disconnects.

        Raises:
            AwsError: `ServiceUnavailable`, as the proxy is being closed.
        """
        task = asyncio.create_task(self._forward(request))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Where the client has disconnected, nobody else looks at it.
            task.exception()

    async def _forward(self, request: Incoming) -> Answer:
        session = await self._ready()
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        url = yarl.URL(self._url + request.path, encoded=True)
        skip = ("User-Agent", "Content-Type", "Accept", "Accept-Encoding")
        async with self._one_at_a_time:
            self._check_open()
            async with session.request(
                request.method,
                url,
                headers=headers,
                data=io.BytesIO(request.body),
                allow_redirects=False,
                skip_auto_headers=skip,
            ) as answer:
                content = await answer.read()
                kept = [(name, value) for name, value in answer.headers.items() if name.lower() not in _HOP]
                if request.method == "HEAD" and "Content-Length" in answer.headers:
                    kept.append(("Content-Length", answer.headers["Content-Length"]))
                return Answer(answer.status, kept, content)

    def _check_open(self) -> None:
        if self._closing:
            raise AwsError("ServiceUnavailable", "the local AWS is ending", 503)

    async def close(self) -> None:
        """Stop moto and reset its state, after the request that it has. Those that wait for their turn are refused."""
        self._closing = True
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        if self._server is not None:
            server, self._server = self._server, None
            try:
                await asyncio.to_thread(self._ending, self._url)
            finally:
                await asyncio.to_thread(_stop, server)

    async def _ready(self) -> aiohttp.ClientSession:
        async with self._starting:
            self._check_open()
            if self._session is None:
                self._server = await asyncio.to_thread(_start)
                host, port = self._server.get_host_and_port()
                self._url = f"http://{host}:{port}"
                await asyncio.to_thread(self._began, self._url)
                self._session = aiohttp.ClientSession(
                    auto_decompress=False,
                    connector=aiohttp.TCPConnector(limit=0),
                    timeout=aiohttp.ClientTimeout(total=None),
                    cookie_jar=aiohttp.DummyCookieJar(),
                )
            return self._session


def _start() -> ThreadedMotoServer:
    try:
        from moto.server import ThreadedMotoServer
    except ImportError as missing:
        what = f"the local AWS needs {missing.name} for services other than Kinesis: pip install 'kinesis-efo[local]'"
        raise AwsError("InternalFailure", what, 500) from None

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _reset()
    return server


def _stop(server: ThreadedMotoServer) -> None:
    server.stop()
    _reset()


def _reset() -> None:
    from moto.moto_api._internal.models import moto_api_backend

    moto_api_backend.reset()
