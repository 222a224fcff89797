"""Fault injection: lets tests delay, reject and corrupt responses of the local AWS.

Pass an implementation of `FaultInjection` as `LocalAws(faults=...)`. Its methods run on the server's event loop and must not block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .consumers import Subscription


@dataclass(frozen=True, slots=True)
class Request:
    """A request to any service, before it is handled.

    Attributes:
        service: Name of the service.
        operation: Name of the operation; empty for services whose requests do not name it (S3).
        params: Decoded parameters for Kinesis (without record data) and other JSON services; empty for other services.
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

    Affects all streams of an HTTP/2 connection. On HTTP/1.1, it has the same effect as `Pause`.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Close the connection with a TCP RST. On HTTP/2, this ends all of its streams."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with a TCP FIN before the response is complete. On HTTP/2, this ends all of its streams."""


@dataclass(frozen=True, slots=True)
class ResetStream:
    """End the stream with RST_STREAM; other streams of the connection continue. On HTTP/1.1, it has the same effect as `Reset`.

    Attributes:
        error_code: HTTP/2 error code; INTERNAL_ERROR by default.
    """

    error_code: int = 2


@dataclass(frozen=True, slots=True)
class GoAway:
    """Send GOAWAY: the connection accepts no more streams, and closes when the last stream has ended.

    Attributes:
        error_code: HTTP/2 error code; NO_ERROR by default.
        grace: Whether all open streams continue. If not, GOAWAY reports this stream and all later ones as not processed, and they
            end without a response. On HTTP/1.1, GoAway does nothing if `grace` is set, otherwise the same as `Close`.
    """

    error_code: int = 0
    grace: bool = True


@dataclass(frozen=True, slots=True)
class Finish:
    """End the response cleanly, as Kinesis does after five minutes."""


Step = bytes | Pause | Freeze | Reset | Close | ResetStream | GoAway | Finish
"""An action to take instead of writing a frame. Bytes are written unchanged and flushed at once."""


class FaultInjection(Protocol):
    """Interface for injecting faults. Inherit from `NoFaults` to override only one method.

    Example:
        >>> class ResetsFifthFrame(NoFaults):
        ...     def frame(self, subscription, frame):
        ...         return [Reset()] if subscription.events == 5 else [frame]
    """

    async def before(self, request: Request) -> None:
        """Called before each operation. It may await to delay the operation, or raise `AwsError` to reject it."""
        ...

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:
        """Called with each frame of a subscription, including the initial response and exceptions inside the event stream.

        Returns the actions to take instead of writing the frame; `[frame]` injects no fault. To inject an exception, return
        `[exception_frame(AwsError(code, message)), Finish()]` (see `kinesis_efo_local.wire`).
        `subscription.events` is the number of events written before this frame.
        """
        ...


class NoFaults:
    """Injects no faults."""

    async def before(self, request: Request) -> None:
        """Let the operation proceed."""

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:  # noqa: ARG002
        """Return the frame unchanged."""
        return (frame,)
