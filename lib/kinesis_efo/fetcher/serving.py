"""What the Arrow Flight services of this library share: where they listen, the run's secret, and the way into an event loop.

Flight answers in threads of its own; every call is handed over to the event loop of the one that is served.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import hmac
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.fetcher.address import FetcherAddress, network_namespace
from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.messages import SECRET_HEADER, pack_error
from kinesis_efo.fetcher.status import STATUS, RunStatus, StatusRequest
from kinesis_efo.hosts import bracketed

if TYPE_CHECKING:
    from kinesis_efo.fetcher.certificate import Certificate

T = TypeVar("T")
More: TypeAlias = Callable[[str, bytes], Coroutine[Any, Any, msgspec.Struct | None]]
_CANCEL_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class StatusDesk:
    """Answers tools that ask how a run reads its shards.

    Attributes:
        token: What a tool has to know; it opens nothing else.
        status: Gives the answer, in the event loop of the one that is served.
    """

    token: str
    status: Callable[[StatusRequest], Awaitable[RunStatus]]


class Service(flight.FlightServerBase):  # type: ignore[misc]
    """Serves until `shutdown`.

    Args:
        loop: The event loop in which calls are answered; None if `act` needs none.
        secret: The secret of the run; a call without it is refused.
        listening: Where to listen.
        certificate: Encrypts what is served; None: nothing does.
        desk: Answers tools; None: nobody does.
        more: Answers messages that are not the service's own, of some type, with None if they are not its either; None: nobody does.

    Attributes:
        address: How it is reached.

    Raises:
        FetcherError: It cannot listen there.
    """

    what = "fetcher"
    """What is served, for messages."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None,
        secret: str,
        listening: Listening,
        certificate: Certificate | None = None,
        desk: StatusDesk | None = None,
        more: More | None = None,
    ) -> None:
        self._loop = loop
        self._desk = desk
        self._more = more
        self._listen(listening, certificate, _SecretCheck(secret, None if desk is None else desk.token))
        namespace = network_namespace() if listening.on_loopback else ""
        pem = None if certificate is None else certificate.pem
        self.address = FetcherAddress(namespace, self.port, listening.hosts, pem)

    def _listen(self, listening: Listening, certificate: Certificate | None, check: _SecretCheck) -> None:
        scheme, pairs = ("grpc", None) if certificate is None else ("grpc+tls", [(certificate.pem, certificate.key)])
        reason = ""
        for port in listening.ports:
            try:
                where = f"{scheme}://{bracketed(listening.address(port))}:{port}"
                super().__init__(where, tls_certificates=pairs, middleware={_CHECK: check})
            except OSError as error:
                reason = str(error)
                if error.errno != errno.EADDRINUSE:
                    break
            except pa.ArrowException as error:
                reason = str(error)
            else:
                return
        raise FetcherError(
            f"the {self.what} cannot listen on {listening}: {reason}. Give ports that are free on host {socket.gethostname()}, one for "
            "each query that runs there (kinesis-efo option 'fetcherPort'), and an address that the host has ('fetcherBindHost')"
        )

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:
        """Answer one call."""
        if action.type == STATUS and self._desk is not None:
            request = decoded(action.body.to_pybytes(), StatusRequest)
            return [flight.Result(msgspec.json.encode(self.run(context, _awaited(self._desk.status(request)))))]
        refuse_tools(context)
        return self.act(context, action)

    def act(self, context: flight.ServerCallContext, action: flight.Action) -> list[flight.Result]:  # noqa: ARG002
        """Answer a call of a task or a fetcher."""
        if self._more is not None:
            # Its caller may ask again: what it has begun is not cut off.
            answer = self.run(None, self._more(action.type, action.body.to_pybytes()))
            if answer is not None:
                return [flight.Result(msgspec.json.encode(answer))]
        raise flight.FlightServerError(f"the {self.what} has no action {action.type!r}")

    def run(self, context: flight.ServerCallContext | None, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, for a call: until its caller has gone."""
        return self.result(context, self.submit(work))

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine in the event loop."""
        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise flight.FlightUnavailableError("the fetcher has stopped") from None

    def done(
        self, context: flight.ServerCallContext | None, future: concurrent.futures.Future[Any], seconds: float
    ) -> bool:
        """Wait for a coroutine; False if it takes longer. If its caller has gone, it is cancelled."""
        give_up_at = time.monotonic() + seconds
        while not concurrent.futures.wait((future,), min(_CANCEL_CHECK_SECONDS, seconds)).done:
            # The caller does not wait any more: its task was killed, or the query stopped.
            if context is not None and context.is_cancelled():
                future.cancel()
                raise flight.FlightCancelledError("the caller has gone") from None
            if time.monotonic() >= give_up_at:
                return False
        return True

    def result(self, context: flight.ServerCallContext | None, future: concurrent.futures.Future[T]) -> T:
        """The result of a coroutine, and its error in the form in which it crosses the wire."""
        self.done(context, future, inf)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise flight.FlightUnavailableError("the fetcher is stopping") from None
        except KinesisEfoError as error:
            raise flight.FlightServerError(str(error), extra_info=pack_error(error)) from error
        except Exception as error:
            wrapped = FetcherError(f"the fetcher failed: {type(error).__name__}: {error}")
            raise flight.FlightServerError(str(wrapped), extra_info=pack_error(wrapped)) from error


def decoded(data: bytes, kind: type[T]) -> T:
    """A message of a call."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise flight.FlightServerError(f"not a {kind.__name__}: {error}") from None


def refuse_tools(context: flight.ServerCallContext) -> None:
    """Let those go on alone who know the run's secret: the token of a tool opens its status and nothing else."""
    if context.get_middleware(_CHECK) is not None:
        raise flight.FlightUnauthenticatedError("the token of the status opens nothing else")


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


_CHECK: Final = "secret"


class _Tool(flight.ServerMiddleware):  # type: ignore[misc]
    """Marks a call that knows the token of the status alone."""


class _SecretCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, secret: str, token: str | None) -> None:
        self._secret = secret.encode()
        self._token = None if token is None else token.encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Tool | None:  # noqa: ARG002
        given = (headers.get(SECRET_HEADER) or [""])[0].encode()
        if hmac.compare_digest(given, self._secret):
            return None
        if self._token is not None and hmac.compare_digest(given, self._token):
            return _Tool()
        raise flight.FlightUnauthenticatedError("the secret of the run is missing or wrong")
