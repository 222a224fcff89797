"""What a service said of the connection that carries a response."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpFacts:
    """How a response is carried. What only HTTP/2 has is None with HTTP/1.1, and where the service has not said it.

    Attributes:
        version: `HTTP/2` or `HTTP/1.1`.
        tls: Version of TLS, such as `TLSv1.3`; None in the clear.
        most_streams: Most streams at a time on one connection (SETTINGS_MAX_CONCURRENT_STREAMS).
        initial_window: Bytes that a client may send on a new stream before the service gives it more room.
        largest_frame: Largest frame that the service takes, bytes.
        header_list: Most bytes of headers that the service takes.
    """

    version: str
    tls: str | None = None
    most_streams: int | None = None
    initial_window: int | None = None
    largest_frame: int | None = None
    header_list: int | None = None


def tls_version(security: ssl.SSLObject | None) -> str | None:
    """The version of TLS of a connection; None where it is not encrypted."""
    return security.version() if security is not None else None
