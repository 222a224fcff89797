"""Fault injection: lets tests delay, refuse and corrupt responses of the local AWS.

Pass an object with the methods of `FaultInjection` as `LocalAws(faults=...)`. They run on the server's event loop and must not block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .consumers import Subscription


@dataclass(frozen=True, slots=True)
class Request:
    """A call to any service, before it is carried out.

    Attributes:
        service: Name of the service.
        operation: Name of the operation; empty for services whose requests do not name it (S3).
        params: Decoded parameters for Kinesis and other JSON services; empty for the rest.
    """

    service: str
    operation: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Send nothing for this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Freeze:
    """Neither read from the connection nor write to it for this many seconds, so that not even a PING is answered.

    Strikes all streams of an HTTP/2 connection. On HTTP/1.1 the same as `Pause`.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Cut the connection with a TCP RST, and with it all streams of an HTTP/2 connection."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with a FIN and without the end of the response, nor of others on an HTTP/2 connection."""


@dataclass(frozen=True, slots=True)
class ResetStream:
    """End the stream with RST_STREAM; others on its connection go on. On HTTP/1.1, which has no streams, the same as `Reset`.

    Attributes:
        error_code: One of HTTP/2; INTERNAL_ERROR by default.
    """

    error_code: int = 2


@dataclass(frozen=True, slots=True)
class GoAway:
    """Announce with GOAWAY that the connection takes no more streams. It closes when the last stream has ended.

    Attributes:
        error_code: One of HTTP/2; NO_ERROR by default.
        grace: Whether all open streams go on. If not, GOAWAY names a stream below this one as the last that was processed:
            this one and those above end without an answer. On HTTP/1.1 nothing happens with grace; the same as `Close`
            without.
    """

    error_code: int = 0
    grace: bool = True


@dataclass(frozen=True, slots=True)
class Finish:
    """End the response cleanly, as after five minutes."""


Step = bytes | Pause | Freeze | Reset | Close | ResetStream | GoAway | Finish
"""An action in place of writing a frame; bytes are written as they are and flushed one by one."""


class FaultInjection(Protocol):
    """The faults to inject. Inherit from `NoFaults` to override only one method.

    Example:
        >>> class ResetsFifthFrame(NoFaults):
        ...     def frame(self, subscription, frame):
        ...         return [Reset()] if subscription.events == 5 else [frame]
    """

    async def before(self, request: Request) -> None:
        """Called before each operation. It may await to delay the operation, or raise `AwsError` to refuse it."""
        ...

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:
        """Called with each frame of a subscription, including the initial response and exceptions inside the event stream.

        Returns the actions in place of writing the frame; `[frame]` injects no fault. To inject an exception, return
        `[exception_frame(AwsError(code, message)), Finish()]` (see `kinesis_efo_local.wire`).
        `subscription.events` is the number of events written before this frame.
        """
        ...


class NoFaults:
    """Injects no faults."""

    async def before(self, request: Request) -> None:
        """Let the operation pass."""

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:  # noqa: ARG002
        """Write the frame as it is."""
        return (frame,)
