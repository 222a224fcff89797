"""Errors of HTTP/2 connections; the type says whether a request may be sent again."""


class NotHttp2(Exception):
    """The other side does not speak HTTP/2."""


class NotProcessed(ConnectionError):
    """The service did not process the request, so it may be sent again, on another connection."""


class ConnectionLost(ConnectionError):
    """The connection is lost, with all its requests."""
