"""What can be wrong with a connection of HTTP/2, and whether a request may be sent again."""


class NotHttp2(Exception):
    """The other side does not speak HTTP/2."""


class NotProcessed(ConnectionError):
    """The service did not begin with the request: it may be sent again, on another connection."""


class ConnectionLost(ConnectionError):
    """The connection is gone, with all that it carried."""
