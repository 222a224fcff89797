"""Forwards requests for services other than Kinesis to a moto server in this process, started at the first such request.

moto has one state per process, which the proxy resets when moto is started and stopped. Operations that moto does not support return an
error in AWS' format.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote

import aiohttp
import yarl

from .errors import AwsError
from .http import Answer, Incoming
from .protocols import operation_of, unknown

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

logger = logging.getLogger(__name__)
ACCOUNT = "x-moto-account-id"
"""The request header with which moto selects the account."""
# Headers that must not be forwarded: hop-by-hop headers, and Content-Length, which is recomputed.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "upgrade", "te", "trailer"}
_KEY = re.compile(r"Credential=([^/,\s]+)/")
_WERKZEUG = "werkzeug"
# Beginning of the HTML page that moto's server returns where AWS would return an error.
_PAGE = b"<!doctype html"
_JSON = "application/json"


def _is_no_traceback(record: logging.LogRecord) -> bool:
    return "Traceback" not in record.getMessage()


def _refusal(request: Incoming, service: str, raised: Exception | None) -> AwsError:
    """Return the error for a request to which moto responds with an HTML page. `raised` is the exception in moto, if any."""
    operation = operation_of(request)
    if raised is None or isinstance(raised, NotImplementedError):
        logger.warning("the local AWS does not know the operation %r of %s", operation, service or "a service")
        return unknown(request, service)
    logger.warning("moto failed in the operation %r of %s: %r", operation, service or "a service", raised)
    return AwsError("InternalFailure", f"moto failed in the operation {operation!r}: {raised!r}", 500)


def _is_html(header: str, value: str) -> bool:
    return header.lower() == "content-type" and value.startswith("text/html")


def _nothing(_url: str) -> None:
    pass


class MotoProxy:
    """Forwards requests to moto.

    Args:
        account_id: The account for requests that are signed with credentials that moto has not issued.
        began: Called in a thread with moto's URL, before the first request is forwarded.
        ending: Called in a thread with moto's URL, after the last request was forwarded.
    """

    def __init__(
        self,
        account_id: str = "123456789012",
        began: Callable[[str], None] = _nothing,
        ending: Callable[[str], None] = _nothing,
    ) -> None:
        self._account_id = account_id
        self._began = began
        self._ending = ending
        self._server: ThreadedMotoServer | None = None
        self._session: aiohttp.ClientSession | None = None
        self._url = ""
        self._starting = asyncio.Lock()
        # Forward one request at a time: DynamoDB's conditional writes must be atomic, but moto checks the condition before it writes.
        self._one_at_a_time = asyncio.Lock()
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._closing = False
        self._raised: Exception | None = None

    async def forward(self, request: Incoming, service: str = "") -> Answer:
        """Forward a request, and return moto's response. The request is carried out even if its client disconnects.

        `service` is the service that the request was signed for. Raises AwsError if moto does not support the operation or
        fails; `ServiceUnavailable` if the proxy is closing.
        """
        task = asyncio.create_task(self._forward(request, service))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Answer]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Retrieve the exception: if the client has disconnected, nothing else does, and asyncio would log it.
            task.exception()

    async def _forward(self, request: Incoming, service: str) -> Answer:
        if unquote(request.path).startswith("/moto-api"):
            raise AwsError("AccessDenied", "the local AWS does not have moto's own API", 403)
        session = await self._ready()
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _HOP]
        if ACCOUNT not in request.headers:
            headers.append((ACCOUNT, self._account(request)))
        url = yarl.URL(self._url + request.path, encoded=True)
        skip = ("User-Agent", "Content-Type", "Accept", "Accept-Encoding")
        async with self._one_at_a_time:
            self._check_open()
            self._raised = None
            async with session.request(
                request.method,
                url,
                headers=headers,
                data=io.BytesIO(request.body),
                allow_redirects=False,
                skip_auto_headers=skip,
            ) as answer:
                content = await answer.read()
                if content.startswith(_PAGE):
                    raise _refusal(request, service, self._raised)
                # Drop moto's CORS headers, which would allow requests from web pages of any origin.
                kept = [
                    (name, value)
                    for name, value in answer.headers.items()
                    if name.lower() not in _HOP and not name.lower().startswith("access-control-")
                ]
                if service != "s3" and content.startswith(b"{"):
                    # Correct the content type: moto labels some JSON responses as HTML, which looks like a proxy's error page to clients.
                    kept = [(name, _JSON if _is_html(name, value) else value) for name, value in kept]
                if request.method == "HEAD" and "Content-Length" in answer.headers:
                    kept.append(("Content-Length", answer.headers["Content-Length"]))
                return Answer(answer.status, kept, content)

    def _watch(self) -> None:
        """Record exceptions in moto, so that `_refusal` can log each in one line, and remove their tracebacks from moto's log."""
        from flask import got_request_exception

        got_request_exception.connect(self._note)
        logging.getLogger(_WERKZEUG).addFilter(_is_no_traceback)

    def _note(self, _app: object, exception: Exception) -> None:
        self._raised = exception

    def _account(self, request: Incoming) -> str:
        """The account that owns a request's access key, such as the key of an assumed role; `account_id` if moto has not issued the key."""
        from moto.core.models import DEFAULT_ACCOUNT_ID
        from moto.iam.models import get_account_id_from

        key = _KEY.search(request.headers.get("Authorization", ""))
        owner = get_account_id_from(key[1]) if key else DEFAULT_ACCOUNT_ID
        return self._account_id if owner == DEFAULT_ACCOUNT_ID else owner

    def _check_open(self) -> None:
        if self._closing:
            raise AwsError("ServiceUnavailable", "the local AWS is ending", 503)

    async def close(self) -> None:
        """Reject waiting requests, wait until moto has answered its current one, then stop moto and reset its state."""
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
                self._watch()
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

    logging.getLogger(_WERKZEUG).setLevel(logging.WARNING)
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
