"""The seam through which tests make the local AWS misbehave. By default nothing does.

Pass an object with these methods as ``LocalAws(faults=...)``. Both run on the server's event loop: never block in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .consumers import Subscription


@dataclass(frozen=True, slots=True)
class Request:
    """A call about to be carried out, of any service.

    ``params`` are the decoded parameters of Kinesis and JSON services, else empty. ``operation`` is empty where only the
    service itself knows it (S3).
    """

    service: str
    operation: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Send nothing for this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Cut the connection with a TCP RST."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection with a FIN and without the last chunk of the response."""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the response cleanly, as after five minutes."""


Step = bytes | Pause | Reset | Close | Finish
"""What is done instead of writing a frame: bytes are written as they are, each flushed by itself."""


class FaultInjection(Protocol):
    """What a misbehaving AWS is made of. Inherit from :class:`NoFaults` to write only one half.

    Example:
        >>> class ResetsFifthFrame(NoFaults):
        ...     def frame(self, subscription, frame):
        ...         return [Reset()] if subscription.events == 5 else [frame]
    """

    async def before(self, request: Request) -> None:
        """Called before each operation. May await to delay it, or raise :class:`AwsError` to refuse it."""
        ...

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:
        """Called with each frame of a subscription, the initial response and in-stream exceptions included.

        Returns what to do instead of writing it; ``[frame]`` is no fault. To inject an in-stream exception, return
        ``[exception_frame(AwsError(code, message)), Finish()]`` (see :mod:`kinesis_efo.local.wire`).
        ``subscription.events`` counts the events written before this frame.
        """
        ...


class NoFaults:
    """Nothing goes wrong."""

    async def before(self, request: Request) -> None:
        """Let it pass."""

    def frame(self, subscription: Subscription, frame: bytes) -> Iterable[Step]:  # noqa: ARG002
        """Write it as it is."""
        return (frame,)
