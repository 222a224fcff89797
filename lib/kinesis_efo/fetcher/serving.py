"""What the services of this library share: where they listen, the run's secret, and the way into an event loop.

Each connection has a thread of its own, which sends what it is asked for; every call is handed over to the event loop of the one that is
served.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import hmac
import os
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar

import msgspec

from kinesis_efo.errors import FetcherError, KinesisEfoError
from kinesis_efo.fetcher import nearby
from kinesis_efo.fetcher.address import FetcherAddress, network_namespace
from kinesis_efo.fetcher.listening import Listening
from kinesis_efo.fetcher.messages import Request, pack_error
from kinesis_efo.fetcher.status import STATUS, RunStatus, StatusRequest
from kinesis_efo.fetcher.wire import Data, Kind, LostError, Wire

if TYPE_CHECKING:
    from kinesis_efo.fetcher.certificate import Certificate

T = TypeVar("T")
More: TypeAlias = Callable[[str, bytes], Coroutine[Any, Any, msgspec.Struct | None]]

STRANGER_SECONDS: Final = 10.0
"""Longest time for each step of a caller that has not shown the secret."""

MOST_STRANGERS: Final = 512
"""Callers at a time that have not shown the secret: each costs a thread. Others wait until these have, or their time is over."""

_MOST_REQUEST_HEAD: Final = 8 << 10
_MOST_OF_STRANGER: Final = 1 << 20
_CANCEL_CHECK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 1.0
_JOIN_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


class Stopped(Exception):
    """The event loop does not answer any more."""


class NotAllowed(Exception):
    """The caller knows the token of the status alone, and asks for something else."""


@dataclass(frozen=True, slots=True)
class StatusDesk:
    """Answers tools that ask how a run reads its shards.

    Attributes:
        token: What a tool has to know; it opens nothing else.
        status: Gives the answer, in the event loop of the one that is served.
    """

    token: str
    status: Callable[[StatusRequest], Awaitable[RunStatus]]


class _Caller:
    """Whoever is at the other end of a connection.

    Args:
        strangers: The places of those who have not shown the secret; it has one of them.

    Attributes:
        is_known: Whether it has shown the secret.
    """

    def __init__(self, strangers: threading.BoundedSemaphore) -> None:
        self.is_known = False
        self._strangers = strangers

    def give_place(self, *, is_known: bool) -> None:
        """Leave the place to another one, once."""
        if not self.is_known:
            self._strangers.release()
        self.is_known = is_known


class Call:
    """A call that is being answered.

    Args:
        wire: The way back to the caller.
        is_tool: Whether the caller knows the token of the status alone.
        seconds: How long the call may last; None: without limit.
    """

    def __init__(self, wire: Wire, is_tool: bool, seconds: float | None) -> None:
        self._wire = wire
        self._give_up_at = inf if seconds is None else time.monotonic() + seconds
        self.is_tool: Final = is_tool

    @property
    def gone(self) -> bool:
        """Whether nobody waits for the answer any more: a caller says nothing before it has it."""
        return self._wire.speaks or self._wire.unheard

    def send(self, kind: Kind, head: bytes = b"", parts: Iterable[Data] = ()) -> None:
        """Send the answer, or a part of it; see `Wire.send`.

        Raises:
            LostError: The caller has gone.
            TimeoutError: It has not taken it as long as the call may last.
        """
        self._wire.send(kind, head, parts, self._give_up_at)


class Service:
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
        self._secret = secret.encode()
        self._desk = desk
        self._more = more
        self._tls = None if certificate is None else _server_context(certificate)
        self._lock = threading.Lock()
        self._stopping = False
        self._strangers = threading.BoundedSemaphore(MOST_STRANGERS)
        self._idle: set[Wire] = set()
        self._threads: dict[threading.Thread, Wire | None] = {}
        self._socket = self._listen(listening)
        namespace = network_namespace() if listening.on_loopback else ""
        pem = None if certificate is None else certificate.pem
        port = self._socket.getsockname()[1]
        self._nearby = nearby.listen() if namespace else None
        name = "" if self._nearby is None else nearby.name(self._nearby)
        self.address = FetcherAddress(namespace, port, listening.hosts, pem, name)
        for sock in filter(None, (self._socket, self._nearby)):
            accepting = f"kinesis-efo {self.what} accepts"
            threading.Thread(target=self._accept, args=(sock,), name=accepting, daemon=True).start()

    def _listen(self, listening: Listening) -> socket.socket:
        reason = ""
        for port in listening.ports:
            try:
                return listening.listen(port)
            except OSError as error:
                reason = str(error)
                if error.errno != errno.EADDRINUSE:
                    break
        raise FetcherError(
            f"the {self.what} cannot listen on {listening}: {reason}. Give ports that are free on host {socket.gethostname()}, one for "
            "each query that runs there (kinesis-efo option 'fetcherPort'), and an address that the host has ('fetcherBindHost')"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Take no more calls; those under way have a moment to end. May be called again."""
        with self._lock:
            self._stopping = True
            idle = list(self._idle)
        for sock in filter(None, (self._socket, self._nearby)):
            with contextlib.suppress(OSError):
                # Wakes the thread that waits there.
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for wire in idle:
            wire.cut()
        self._join(_GRACE_SECONDS)
        with self._lock:
            wires = [wire for wire in self._threads.values() if wire is not None]
        for wire in wires:
            wire.cut()
        self._join(_JOIN_SECONDS)

    def _join(self, seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        with self._lock:
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    # -- connections

    def _accept(self, listening: socket.socket) -> None:
        while not self._stopping:
            if not self._strangers.acquire(timeout=_PAUSE_SECONDS):
                continue
            try:
                sock, _ = listening.accept()
            except OSError:
                self._strangers.release()
                # Without a file for it, a caller waits.
                time.sleep(_PAUSE_SECONDS)
                continue
            thread = threading.Thread(
                target=self._serve, args=(sock,), name=f"kinesis-efo {self.what} call", daemon=True
            )
            try:
                # Whoever stops the service waits for all threads that are known, and can do so for those only that run.
                with self._lock:
                    thread.start()
                    self._threads[thread] = None
            except RuntimeError:
                self._strangers.release()
                sock.close()

    def _serve(self, sock: socket.socket) -> None:
        caller = _Caller(self._strangers)
        try:
            with sock, contextlib.suppress(LostError, TimeoutError, OSError):
                sock.settimeout(STRANGER_SECONDS)
                with self._secured(sock) as safe:
                    wire = Wire(safe)
                    with self._lock:
                        self._threads[threading.current_thread()] = wire
                    if isinstance(safe, ssl.SSLSocket):
                        safe.do_handshake()
                    wire.greet(STRANGER_SECONDS)
                    while self._next(wire, caller):
                        pass
        finally:
            caller.give_place(is_known=False)
            with self._lock:
                del self._threads[threading.current_thread()]

    def _secured(self, sock: socket.socket) -> socket.socket:
        if self._nearby is not None and sock.family == self._nearby.family:
            if not nearby.is_own(sock):
                raise LostError("a process of another user")
            return sock
        if self._tls is None:
            return sock
        return self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _next(self, wire: Wire, caller: _Caller) -> bool:
        """Answer the next call of a connection; returns whether there may be another one."""
        # A stranger must not gain time by sending a byte now and then.
        give_up_at = inf if caller.is_known else time.monotonic() + STRANGER_SECONDS
        with self._lock:
            if self._stopping:
                return False
            self._idle.add(wire)
        try:
            kind, head, size = wire.receive_head(None, _MOST_REQUEST_HEAD, give_up_at)
        finally:
            with self._lock:
                self._idle.discard(wire)
        request = _request(head) if kind is Kind.REQUEST else None
        is_tool = self._is_tool(request.secret) if request is not None else None
        if request is None or is_tool is None or (is_tool and size > _MOST_OF_STRANGER):
            # What it has sent is taken: else it might not hear the answer.
            if size <= _MOST_OF_STRANGER:
                wire.receive_body(size, None, give_up_at)
            wire.send(Kind.REFUSED, give_up_at=time.monotonic() + STRANGER_SECONDS)
            return False
        caller.give_place(is_known=True)
        body = bytes(wire.receive_body(size, STRANGER_SECONDS))
        return self._answer(Call(wire, is_tool, request.seconds), request.name, body)

    def _is_tool(self, secret: str) -> bool | None:
        """Whether a caller knows the token of the status alone; None if it knows nothing."""
        given = secret.encode()
        if hmac.compare_digest(given, self._secret):
            return False
        if self._desk is not None and hmac.compare_digest(given, self._desk.token.encode()):
            return True
        return None

    def _answer(self, call: Call, name: str, body: bytes) -> bool:
        """Answer a call; returns whether there may be another one."""
        try:
            try:
                answer = self._dispatched(call, name, body)
            except NotAllowed:
                call.send(Kind.REFUSED)
            except KinesisEfoError as error:
                call.send(Kind.ERROR, pack_error(error))
            else:
                if answer is None:
                    call.send(Kind.END)
                else:
                    call.send(Kind.ANSWER, msgspec.json.encode(answer))
        except (CallerGone, Stopped, LostError, TimeoutError):
            return False
        return True

    def _dispatched(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:
        if name == STATUS and self._desk is not None:
            return self.run(call, _awaited(self._desk.status(decoded(body, StatusRequest))))
        if call.is_tool:
            raise NotAllowed
        return self.act(call, name, body)

    # -- calls

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:  # noqa: ARG002
        """Answer a call of a task or a fetcher.

        Args:
            call: The call.
            name: What is asked.
            body: The message.

        Returns:
            The answer; None if it was sent in parts.
        """
        if self._more is not None:
            # Its caller may ask again: what it has begun is not cut off.
            answer = self.run(None, self._more(name, body))
            if answer is not None:
                return answer
        raise FetcherError(f"the {self.what} has no action {name!r}")

    def run(self, call: Call | None, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop, for a call: until its caller has gone."""
        return self.result(call, self.submit(work))

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine in the event loop."""
        assert self._loop is not None
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise Stopped from None

    def done(self, call: Call | None, future: concurrent.futures.Future[Any], seconds: float) -> bool:
        """Wait for a coroutine; False if it takes longer. If its caller has gone, it is cancelled."""
        give_up_at = time.monotonic() + seconds
        while not concurrent.futures.wait((future,), min(_CANCEL_CHECK_SECONDS, seconds)).done:
            # The caller does not wait any more: its task was killed, or the query stopped.
            if call is not None and call.gone:
                future.cancel()
                raise CallerGone
            if time.monotonic() >= give_up_at:
                return False
        return True

    def result(self, call: Call | None, future: concurrent.futures.Future[T]) -> T:
        """The result of a coroutine, or its error."""
        self.done(call, future, inf)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Stopped from None
        except KinesisEfoError:
            raise
        except Exception as error:
            raise FetcherError(f"the fetcher failed: {type(error).__name__}: {error}") from error


def decoded(data: bytes, kind: type[T]) -> T:
    """A message of a call.

    Raises:
        FetcherError: It is none.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FetcherError(f"not a {kind.__name__}: {error}") from None


def _request(head: bytes) -> Request | None:
    try:
        return msgspec.json.decode(head, type=Request)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


def _server_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with _readable(certificate.pem) as chain, _readable(certificate.key) as key:
        context.load_cert_chain(chain, key)
    return context


@contextlib.contextmanager
def _readable(text: str) -> Iterator[str]:
    """A path that some bytes can be read from, once: Python takes keys from files only, and this one is to be in none."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as file:
        # Little enough for a pipe to hold.
        file.write(text.encode())
        file.close()
        yield f"/dev/fd/{reading}"
