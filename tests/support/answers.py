"""A client whose answers a test gives by hand, for whoever follows them by botocore's events, and a clock that stands still."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from kinesis_efo.clock import SystemClock


class Answers:
    """Remembers who listens to the events of a client."""

    def __init__(self) -> None:
        self.meta = SimpleNamespace(events=self)
        self._listeners: dict[str, Callable[..., None]] = {}

    def register(self, name: str, listener: Callable[..., None]) -> None:
        self._listeners[name] = listener

    def send(self) -> SimpleNamespace:
        """Send a request."""
        request = SimpleNamespace(context={})
        self._listeners["request-created.kinesis"](request=request, operation_name="ListShards")
        return request

    def answer(self, headers: Mapping[str, str], request: SimpleNamespace | None = None) -> None:
        """Answer a request."""
        parsed: dict[str, Any] = {"ResponseMetadata": {"HTTPHeaders": headers}}
        sent = (request or self.send()).context
        self._listeners["after-call.kinesis"](parsed=parsed, http_response=None, model=None, context=sent)


class FixedClock:
    """A clock that a test sets.

    Args:
        now: Epoch seconds.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self.up = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.up

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(f"nobody should sleep for {seconds} s")

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.up += seconds


class ForwardClock(SystemClock):
    """The real clocks, set forward."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset

    def monotonic(self) -> float:
        return super().monotonic() + self.offset
