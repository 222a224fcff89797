"""Opens HTTP/2 connections: directly or through a proxy, with TLS or in cleartext."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from aiohappyeyeballs import start_connection

from kinesis_efo.http2.connection import Connection
from kinesis_efo.http2.response import NotHttp2

_LONGEST_ANSWER: Final = 64 << 10
_PORTS: Final = {"http": 80, "https": 443}


class ProxyRefused(Exception):
    """A proxy refused to connect to the service."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The address of a service: scheme (`http` or `https`), host name or IP address (IPv6 without brackets), and port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """Parse the origin of a URL.

        >>> Origin.of("https://kinesis.eu-west-1.amazonaws.com/")
        Origin(scheme='https', host='kinesis.eu-west-1.amazonaws.com', port=443)
        """
        parts = urlsplit(url)
        return cls(parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme])

    @property
    def authority(self) -> str:
        """Host and port (without the scheme's default port), as in the `Host` header, which is part of the request's signature."""
        return str(self).removesuffix(f":{_PORTS[self.scheme]}")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy for TLS connections: its URL, with user and password if needed, and the TLS context for an `https` proxy."""

    url: str
    security: ssl.SSLContext | None


async def dial(
    origin: Origin, security: ssl.SSLContext | None, proxy: Proxy | None, make: Callable[[], Connection]
) -> Connection:
    """Open the connection that `make` creates, and wait until it is ready. If `security` is None, uses neither TLS nor the proxy.

    Raises `NotHttp2`, `ProxyRefused`, or `OSError` if the service is unreachable or its certificate is not trusted.
    """
    loop = asyncio.get_running_loop()
    connection = make()
    try:
        if security is None:
            await loop.create_connection(lambda: connection, sock=await _connected(origin.host, origin.port))
            try:
                await connection.ready
            except NotHttp2 as wrong:
                raise NotHttp2(f"{origin} does not answer HTTP/2: {wrong}") from wrong
            return connection
        if proxy is None:
            sock = await _connected(origin.host, origin.port)
            transport, _ = await loop.create_connection(
                lambda: connection, sock=sock, ssl=security, server_hostname=origin.host
            )
        else:
            through = await _through(proxy, origin)
            secured = await loop.start_tls(through, connection, security, server_hostname=origin.host)
            if secured is None:
                raise ConnectionError(f"the connection to {origin} was lost during TLS' handshake")
            transport = secured
            connection.connection_made(transport)
        chosen = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        if chosen != "h2":
            raise NotHttp2(f"{origin} speaks {chosen or 'HTTP/1.1'}: it did not choose HTTP/2 in TLS' handshake (ALPN)")
        try:
            await connection.ready
        except NotHttp2 as wrong:
            raise ConnectionError(str(wrong)) from wrong
    except BaseException as error:
        connection.abort(error if isinstance(error, Exception) else ConnectionError("given up"))
        raise
    return connection


async def _connected(host: str, port: int) -> socket.socket:
    """Connect to a host over IPv6 or IPv4, whichever responds first (RFC 8305). uvloop's `create_connection` cannot do this."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    try:
        return await start_connection(addresses, happy_eyeballs_delay=0.25)
    except RuntimeError as error:
        # uvloop raises RuntimeError if a closed socket's file descriptor is reused too soon. Callers retry a ConnectionError.
        raise ConnectionError(f"{host}:{port}: {error}") from error


async def _through(proxy: Proxy, origin: Origin) -> asyncio.Transport:
    parts = urlsplit(proxy.url)
    lines = [f"CONNECT {origin} HTTP/1.1", f"Host: {origin}"]
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}")
    reader = asyncio.StreamReader(_LONGEST_ANSWER)
    transport, _ = await asyncio.get_running_loop().create_connection(
        lambda: asyncio.StreamReaderProtocol(reader),
        sock=await _connected(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 80)),
        ssl=proxy.security if parts.scheme == "https" else None,
        server_hostname=parts.hostname if parts.scheme == "https" else None,
    )
    try:
        transport.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = await _head(reader)
        status = answer.split(b"\r\n", 1)[0].decode("latin-1")
        if not re.match(r"HTTP/1\.\d 2\d\d\b", status):
            raise ProxyRefused(f"it answers {status[:200]!r}")
    except BaseException:
        if not transport.is_closing():
            transport.abort()
        raise
    return transport


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the status line and headers of a proxy's response, or their first bytes if they are too long."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return await reader.read(_LONGEST_ANSWER)
    except asyncio.IncompleteReadError:
        raise ProxyRefused("it closed the connection") from None
