"""AWS clients that a test answers for, in virtual time: what was asked, and which clients were closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

from kinesis_efo.clock import Clock

Answer = Callable[[str, dict[str, Any]], dict[str, Any]]


class FakeClients:
    """Takes the place of the class `AsyncClients`.

    Args:
        clock: Virtual time.
        answer: Called with an operation and its arguments; may raise.
        ahead: Seconds by which the server's clock is ahead.

    Attributes:
        made: Settings and region of each `AsyncClients`.
        clients: Every client that was opened.
    """

    def __init__(self, clock: Clock, answer: Answer, ahead: float = 0.0) -> None:
        self.clock = clock
        self.answer = answer
        self.ahead = ahead
        self.made: list[tuple[Any, str]] = []
        self.clients: list[FakeClient] = []

    def __call__(self, settings: Any, region: str) -> FakeClients:
        self.made.append((settings, region))
        return self

    async def open(self, service: str, config: Any = None) -> FakeClient:
        self.clients.append(FakeClient(self, service, config))
        return self.clients[-1]

    def calls(self, operation: str) -> list[dict[str, Any]]:
        """The arguments of each call of an operation."""
        return [arguments for client in self.clients for name, arguments in client.calls if name == operation]


class FakeClient:
    """A client; an async context manager, as aiobotocore's are."""

    def __init__(self, clients: FakeClients, service: str, config: Any) -> None:
        self.service = service
        self.config = config
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.open = False
        self.meta = SimpleNamespace(events=self, service_model=SimpleNamespace(service_name=service))
        self._clients = clients
        self._listeners: dict[str, Callable[..., Any]] = {}

    async def __aenter__(self) -> FakeClient:
        self.open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        # A real one closes its connections, and can be interrupted.
        for _turn in range(5):
            await asyncio.sleep(0)
        self.open = False

    def register(self, name: str, listener: Callable[..., Any], **_: Any) -> None:
        self._listeners[name] = listener

    def __getattr__(self, operation: str) -> Any:
        async def call(**arguments: Any) -> dict[str, Any]:
            assert self.open, f"{operation} of a client that is not open"
            self.calls.append((operation, arguments))
            request = SimpleNamespace(context={})
            self._tell("request-created", request=request, operation_name=operation)
            date = formatdate(self._clients.clock.time() + self._clients.ahead, usegmt=True)
            parsed = {"ResponseMetadata": {"HTTPHeaders": {"x-amzn-requestid": "1", "date": date}}}
            self._tell("after-call", parsed=parsed, context=request.context)
            return self._clients.answer(operation, arguments)

        return call

    def _tell(self, event: str, **about: Any) -> None:
        if (listener := self._listeners.get(f"{event}.{self.service}")) is not None:
            listener(**about)
