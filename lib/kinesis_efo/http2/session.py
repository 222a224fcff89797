"""The session class for aiobotocore: sends requests over HTTP/2, or over HTTP/1.1 if the service does not support HTTP/2."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiobotocore.awsrequest import AioAWSResponse
from botocore.exceptions import (
    BotoCoreError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ProxyConnectionError,
    ReadTimeoutError,
    SSLError,
)
from botocore.httpsession import ProxyConfiguration, create_urllib3_context, get_cert_path, mask_proxy_url
from hpack import HeaderTuple, NeverIndexedHeaderTuple

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.http2.connection import RECEIVE_BYTES, Connection
from kinesis_efo.http2.dialing import Origin, Proxy, ProxyRefused, dial
from kinesis_efo.http2.pool import Changed, Pool
from kinesis_efo.http2.response import LARGEST_WINDOW, NotHttp2, NotProcessed, Response
from kinesis_efo.raw_bodies import HttpSession

logger = logging.getLogger(__name__)

TRANSPORTS: Final = ("auto", "http2", "http1")
"""Values of the option `transport`. With `auto`, HTTP/2 is used if the TLS handshake negotiates it, and HTTP/1.1 otherwise."""

_TRIES: Final = 3
_DECIDED_SECONDS: Final = 300.0
# Request headers that are not copied: HTTP/2 has pseudo-headers instead or forbids them, and accept-encoding is always `identity`.
_NOT_SENT: Final = frozenset(
    ("host", "accept-encoding", "connection", "transfer-encoding", "keep-alive", "upgrade", "te", "proxy-connection")
)
_SECRET: Final = frozenset(("authorization", "x-amz-security-token"))


def session_class(
    transport: str,
    share: Callable[[], int] = lambda: 2 * LARGEST_WINDOW,
    clock: Clock | None = None,
    socket_factory: Callable[..., socket.socket] | None = None,
) -> Any:
    """Return the session class for a transport (one of `TRANSPORTS`), to pass as `AioConfig(http_session_cls=...)`.

    `socket_factory` creates the sockets of HTTP/1.1 connections. For `share`, see `Response`.
    """
    if transport == "http1":
        return partial(HttpSession, socket_factory=socket_factory)
    only = transport == "http2"
    return partial(Http2Session, only=only, share=share, clock=clock or SystemClock(), socket_factory=socket_factory)


class Http2Session(HttpSession):
    """An HTTP session for aiobotocore that tries HTTP/2 first and then, unless `only` is set, HTTP/1.1.

    Certificates, proxies, timeouts and errors are the same as in aiobotocore's session.
    """

    def __init__(self, *, only: bool, share: Callable[[], int], clock: Clock, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._verify: bool | str = arguments.get("verify", True)
        self._certificate: str | tuple[str, str] | None = arguments.get("client_cert")
        self._proxies = ProxyConfiguration(arguments.get("proxies"), arguments.get("proxies_config"))
        self._connect_seconds, self._read_seconds = arguments["timeout"]
        self._most_connections: int = arguments["max_pool_connections"]
        self._only = only
        self._share = share
        self._clock = clock
        self._pools: dict[tuple[Origin, str | None], Pool] = {}
        self._scratch = bytearray(RECEIVE_BYTES)
        self._http1_until: dict[Origin, float] = {}
        self._logged: set[tuple[Origin, str]] = set()
        self._contexts: dict[str | None, asyncio.Future[tuple[ssl.SSLContext, ssl.SSLContext | None]]] = {}
        self._closed = False

    async def __aexit__(self, *raised: Any) -> None:
        self._closed = True
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))
        await asyncio.gather(*self._contexts.values(), return_exceptions=True)
        await super().__aexit__(*raised)

    async def exchange(self, request: Any) -> AioAWSResponse:
        """Send a request over HTTP/2 or, if HTTP/2 is not possible and `only` is not set, over HTTP/1.1.

        Raises `HTTPClientError` or botocore's `ConnectionError`, with the reason, if there is no response.
        """
        if self._closed:
            raise HTTPClientError(error="the client was closed")
        origin = Origin.of(request.url)
        # Without TLS, client and service cannot negotiate HTTP/2, so try it only if HTTP/1.1 is not allowed.
        may_agree = self._only or origin.scheme == "https"
        if may_agree and self._clock.monotonic() >= self._http1_until.get(origin, 0.0):
            try:
                return await self._send(request, origin)
            except NotHttp2 as why:
                if self._only:
                    error = f"kinesis-efo option 'transport' is 'http2', but {why}; use 'auto' or 'http1'"
                    raise HTTPClientError(error=error) from None
                self._http1_until[origin] = self._clock.monotonic() + _DECIDED_SECONDS
                self._log(origin, f"reading over HTTP/1.1: {why}", logging.INFO)
        return await super().exchange(request)

    async def _send(self, request: Any, origin: Origin) -> AioAWSResponse:
        url = request.url
        proxy_url = self._proxies.proxy_url_for(url)
        try:
            response = await self._ask(request, origin, proxy_url)
        except _ConnectFailure as unconnected:
            raise _unconnected(unconnected.cause, url, proxy_url) from unconnected.cause
        except TimeoutError as error:
            raise _because(ReadTimeoutError(endpoint_url=url, error=error), error) from error
        except ConnectionError as error:
            raise _because(ConnectionClosedError(endpoint_url=url, request=request, error=error), error) from error
        return AioAWSResponse(url, response.status, response.headers, response)

    async def _ask(self, request: Any, origin: Origin, proxy_url: str | None) -> Response:
        pool = self._pool(origin, proxy_url)
        head = _head(request)
        tries = 0
        while True:
            tries += 1
            connection = await pool.place()
            try:
                response = await connection.request(head, request.body, self._share, self._read_seconds)
            except NotProcessed:
                if tries == _TRIES:
                    raise
            else:
                facts = response.facts
                streams = facts.most_streams or "any number of"
                self._log(origin, f"reading over HTTP/2, {streams} streams per connection", logging.DEBUG)
                return response

    def _pool(self, origin: Origin, proxy_url: str | None) -> Pool:
        key = (origin, proxy_url)
        if key not in self._pools:
            self._pools[key] = Pool(partial(self._dial, origin, proxy_url), self._most_connections)
        return self._pools[key]

    async def _dial(self, origin: Origin, proxy_url: str | None, changed: Changed) -> Connection:
        if proxy_url is not None and origin.scheme != "https":
            raise NotHttp2(f"{origin} is reached through a proxy and without TLS: a proxy passes HTTP/2 only with TLS")
        try:
            async with asyncio.timeout(self._connect_seconds):
                security = proxy = None
                if origin.scheme == "https":
                    security, for_proxy = await self._security(proxy_url)
                    proxy = Proxy(proxy_url, for_proxy) if proxy_url is not None else None
                connection = await dial(
                    origin, security, proxy, lambda: Connection(self._clock, changed, self._scratch)
                )
        except (OSError, ProxyRefused) as error:
            raise _ConnectFailure(error) from error
        return connection

    async def _security(self, proxy_url: str | None) -> tuple[ssl.SSLContext, ssl.SSLContext | None]:
        if proxy_url not in self._contexts:
            # Use a thread, because loading certificates reads files.
            self._contexts[proxy_url] = asyncio.ensure_future(asyncio.to_thread(self._build_alpn_contexts, proxy_url))
        try:
            return await asyncio.shield(self._contexts[proxy_url])
        except Exception as error:
            # Do not cache the failure: the certificate file may exist by the next attempt.
            self._contexts.pop(proxy_url, None)
            error_text = (
                f"TLS cannot be set up with authorities {self._verify!r} and client certificate {self._certificate!r}: "
                f"{error}; check the files that 'verify', AWS_CA_BUNDLE and 'client_cert' name"
            )
            raise HTTPClientError(error=error_text) from error

    def _build_alpn_contexts(self, proxy_url: str | None) -> tuple[ssl.SSLContext, ssl.SSLContext | None]:
        security = self._trusting(self._certificate)
        security.minimum_version = max(security.minimum_version, ssl.TLSVersion.TLSv1_2)
        security.set_alpn_protocols(["h2"] if self._only else ["h2", "http/1.1"])
        if proxy_url is None:
            return security, None
        for_proxy = self._trusting(self._proxies.settings.get("proxy_client_cert"))
        if authorities := self._proxies.settings.get("proxy_ca_bundle"):
            for_proxy.load_verify_locations(authorities)
        return security, for_proxy

    def _trusting(self, certificate: str | tuple[str, str] | None) -> ssl.SSLContext:
        context: ssl.SSLContext = create_urllib3_context()
        context.check_hostname = bool(self._verify)
        if not self._verify:
            context.verify_mode = ssl.CERT_NONE
        elif authorities := get_cert_path(self._verify):
            context.load_verify_locations(authorities)
        if certificate:
            context.load_cert_chain(*((certificate,) if isinstance(certificate, str) else certificate))
        return context

    def _log(self, origin: Origin, what: str, level: int) -> None:
        if (origin, what) not in self._logged:
            self._logged.add((origin, what))
            logger.log(level, "%s: %s", origin, what)


class _ConnectFailure(Exception):
    """A connection could not be opened. `cause` is the original error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _unconnected(cause: Exception, url: str, proxy_url: str | None) -> BotoCoreError:
    error: BotoCoreError
    if isinstance(cause, TimeoutError):
        error = ConnectTimeoutError(endpoint_url=url, error=cause)
    elif isinstance(cause, ssl.SSLError):
        return SSLError(endpoint_url=url, error=cause)
    elif proxy_url is not None:
        error = ProxyConnectionError(proxy_url=mask_proxy_url(proxy_url), error=cause)
    else:
        error = EndpointConnectionError(endpoint_url=url, error=cause)
    return _because(error, cause)


def _because(error: BotoCoreError, cause: Exception) -> BotoCoreError:
    error.args = (f"{error}: {str(cause) or type(cause).__name__}",)
    return error


def _head(request: Any) -> list[tuple[str, str]]:
    """Return the HTTP/2 headers of a prepared request, with pseudo-headers first."""
    parts = urlsplit(request.url)
    target = parts.path or "/"
    host = request.headers.get("Host") or Origin.of(request.url).authority
    head: list[tuple[str, str]] = [
        (":method", request.method),
        (":scheme", parts.scheme),
        (":authority", _text(host)),
        (":path", f"{target}?{parts.query}" if parts.query else target),
    ]
    for given, value in request.headers.items():
        if (name := given.lower()) not in _NOT_SENT:
            kind = NeverIndexedHeaderTuple if name in _SECRET else HeaderTuple
            head.append(cast("tuple[str, str]", kind(name, _text(value))))
    head.append(("accept-encoding", "identity"))
    return head


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
