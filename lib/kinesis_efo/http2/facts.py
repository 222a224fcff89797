"""Facts about the connection that carries a response, for logs and tools."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpFacts:
    """The protocol of a response, and the service's settings of HTTP/2: None with HTTP/1.1, or if the service has not sent them.

    Attributes:
        version: `HTTP/2` or `HTTP/1.1`.
        tls: Version of TLS, such as `TLSv1.3`; None without TLS.
        most_streams: Maximum streams at a time on one connection (SETTINGS_MAX_CONCURRENT_STREAMS).
        initial_window: Bytes that a client may send on a new stream before the service opens the window further.
        largest_frame: Maximum bytes of a frame that the service accepts.
        header_list: Maximum bytes of headers that the service accepts.
    """

    version: str
    tls: str | None = None
    most_streams: int | None = None
    initial_window: int | None = None
    largest_frame: int | None = None
    header_list: int | None = None


def tls_version(security: ssl.SSLObject | None) -> str | None:
    """Return the TLS version of a connection; None without TLS."""
    return security.version() if security is not None else None
