"""A service for other processes of this library: listens, authenticates callers by a secret, and passes their calls to an event loop.

Each connection has a thread, which also sends the replies. `Service.most_unauthenticated` limits the number of unauthenticated TCP callers.
Each must authenticate within `Service.authentication_seconds`, with a message of `2 * PROOF_BYTES` bytes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec

from kinesis_efo.calls.address import FetcherAddress, Listening, is_own, listen_nearby, network_namespace
from kinesis_efo.calls.tls import Certificate, fingerprint, service_context
from kinesis_efo.calls.wire import Data, Kind, LostError, Request, Wire, pack_error
from kinesis_efo.errors import FetcherError, KinesisEfoError

T = TypeVar("T")
More: TypeAlias = Callable[[str, bytes], Coroutine[Any, Any, msgspec.Struct | None]]

_SECRET: Final = 0
_MOST_REQUEST_HEAD: Final = 8 << 10
_MOST_OF_TOOL: Final = 64 << 10
_CANCEL_CHECK_SECONDS: Final = 0.5
_JOIN_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.1


class CallerGone(Exception):
    """Raised if the caller has closed the connection, or if its host is unreachable."""


class Stopped(Exception):
    """Raised if the event loop has ended."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The only call that command-line tools, such as `kinesis-efo lag`, may make."""

    token: str  # The secret that tools authenticate with
    name: str  # The name of the call
    request: type[Any]  # The type of the call's message
    answer: Callable[[Any], Coroutine[Any, Any, msgspec.Struct]]  # Handles the message and returns the reply


class Call:
    """A call in progress. Its reply must be sent within `seconds`; None for no limit."""

    def __init__(self, wire: Wire, is_tool: bool, seconds: float | None) -> None:
        self._wire = wire
        self._give_up_at = inf if seconds is None else time.monotonic() + seconds
        self.is_tool: Final = is_tool  # Whether the caller authenticated as a command-line tool

    @property
    def gone(self) -> bool:
        """Whether the caller is gone. Callers do not send data before the reply, so a readable connection must have been closed."""
        return self._wire.speaks or self._wire.unreachable

    def send(self, kind: Kind, head: bytes = b"", parts: Iterable[Data] = ()) -> None:
        """Send a frame of the reply. Raises `LostError` if the caller is gone, and `TimeoutError` if the call has timed out."""
        self._wire.send(kind, head, parts, self._give_up_at)


class Service:
    """Serves authenticated callers at `address` until `shutdown`. Raises `FetcherError` if it cannot listen.

    Args:
        loop: The event loop in which calls are executed; None if `act` does not need one.
        secret: The run's secret, with which callers other than tools authenticate.
        listening: Where to listen.
        certificate: The certificate for TLS on TCP connections; None for cleartext.
        tool_call: The call that tools may make; None to reject tools.
        more: Handles calls that `act` does not handle, and returns the reply; returns None for unknown calls.
    """

    what = "fetcher"
    """The name of the service, for messages."""

    authentication_seconds = 10.0
    """Seconds within which a caller must authenticate, and a tool must send its call."""

    most_unauthenticated = 512
    """Maximum TCP connections of command-line tools and unauthenticated callers. Each has a thread; others wait in the listen backlog."""

    hurry_seconds = 2.0
    """Replaces `authentication_seconds` at `most_unauthenticated` callers, so that silent callers soon make room for others."""
    grace_seconds = 1.0

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None,
        secret: str,
        listening: Listening,
        certificate: Certificate | None = None,
        tool_call: ToolCall | None = None,
        more: More | None = None,
    ) -> None:
        self._loop = loop
        self._tool_call = tool_call
        self._more = more
        self._secrets = (secret,) if tool_call is None else (secret, tool_call.token)
        self._pem = None if certificate is None else certificate.pem
        self._tls = None if certificate is None else service_context(certificate)
        self._lock = threading.Lock()
        self._stopping = False
        self._unauthenticated: dict[Wire, float] = {}
        self._idle: set[Wire] = set()
        self._threads: dict[threading.Thread, Wire] = {}
        self._socket = self._listen(listening)
        self._nearby = listen_nearby() if listening.on_loopback else None
        name = "" if self._nearby is None else bytes(self._nearby.getsockname()[1:]).decode()
        namespace = network_namespace() if listening.on_loopback else ""
        self.address = FetcherAddress(namespace, self._socket.getsockname()[1], listening.hosts, self._pem, name)
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
            "each query that runs there (kinesis-efo option 'fetcherPort'), and an address that the host has ('fetcherHost')"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Stop accepting calls, wait up to `grace_seconds` for running calls, and close all connections. Later calls do nothing."""
        with self._lock:
            self._stopping = True
            idle = [*self._idle, *self._unauthenticated]
        for sock in filter(None, (self._socket, self._nearby)):
            with contextlib.suppress(OSError):
                # Wake the thread that is waiting in `accept`.
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for wire in idle:
            wire.cut()
        self._join(self.grace_seconds)
        with self._lock:
            wires = list(self._threads.values())
        for wire in wires:
            wire.cut()
        self._join(_JOIN_SECONDS)

    def _join(self, seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        with self._lock:
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _accept(self, listening: socket.socket) -> None:
        while not self._stopping:
            if listening is self._socket and not self._has_place():
                time.sleep(_PAUSE_SECONDS)
                continue
            try:
                sock, _ = listening.accept()
            except OSError:
                # The process may temporarily have too many open files. Retry; the caller waits in the backlog.
                time.sleep(_PAUSE_SECONDS)
                continue
            try:
                sock = self._secured(sock, listening)
                wire = Wire(sock)
            except OSError:
                sock.close()
                continue
            thread = threading.Thread(
                target=self._serve, args=(sock, wire), name=f"kinesis-efo {self.what} call", daemon=True
            )
            try:
                # Start and register the thread under the lock, so that `shutdown` cannot miss it.
                with self._lock:
                    thread.start()
                    self._threads[thread] = wire
                    if listening is self._socket:
                        self._unauthenticated[wire] = time.monotonic()
            except RuntimeError:
                wire.close()

    def _has_place(self) -> bool:
        """Return whether another TCP caller can be accepted. If not, disconnect callers that did not authenticate in `hurry_seconds`."""
        late = time.monotonic() - self.hurry_seconds
        with self._lock:
            if len(self._unauthenticated) < self.most_unauthenticated:
                return True
            for wire, since in self._unauthenticated.items():
                # Do not disconnect a caller whose proof has arrived but has not been read yet.
                if since <= late and not wire.speaks:
                    wire.cut()
        return False

    def _secured(self, sock: socket.socket, listening: socket.socket) -> socket.socket:
        sock.settimeout(self.authentication_seconds)
        if listening is self._nearby:
            if not is_own(sock):
                raise PermissionError("a process of another user")
            return sock
        if self._tls is None:
            return sock
        return self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def _serve(self, sock: socket.socket, wire: Wire) -> None:
        give_up_at = time.monotonic() + self.authentication_seconds
        channel = fingerprint(None)
        try:
            with contextlib.suppress(OSError):
                if isinstance(sock, ssl.SSLSocket):
                    sock.do_handshake()
                    channel = fingerprint(self._pem)
                shown = wire.challenge(self._secrets, channel, give_up_at)
                if shown == _SECRET:
                    with self._lock:
                        self._unauthenticated.pop(wire, None)
                while shown is not None and self._next(wire, is_tool=shown != _SECRET):
                    pass
        finally:
            with self._lock:
                del self._threads[threading.current_thread()]
                self._unauthenticated.pop(wire, None)
            wire.close()

    def _next(self, wire: Wire, *, is_tool: bool) -> bool:
        """Receive and handle the next call of a connection. Return whether the connection stays open for further calls."""
        with self._lock:
            if self._stopping:
                return False
            self._idle.add(wire)
        try:
            seconds, most = (self.authentication_seconds, _MOST_OF_TOOL) if is_tool else (None, inf)
            frame = wire.receive(seconds, _MOST_REQUEST_HEAD, most)
            request = decoded(frame.head, Request)
        except FetcherError:
            return False
        finally:
            with self._lock:
                self._idle.discard(wire)
        if frame.kind is not Kind.REQUEST:
            return False
        return self._answer(Call(wire, is_tool, request.seconds), request.name, bytes(frame.body))

    def _answer(self, call: Call, name: str, body: bytes) -> bool:
        """Handle a call. Return whether the connection stays open for further calls."""
        answer: msgspec.Struct | None
        try:
            try:
                if self._tool_call is not None and name == self._tool_call.name:
                    answer = self.run(call, self._tool_call.answer(decoded(body, self._tool_call.request)))
                elif not call.is_tool:
                    answer = self.act(call, name, body)
                else:
                    call.send(Kind.REFUSED)
                    return True
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

    def act(self, call: Call, name: str, body: bytes) -> msgspec.Struct | None:  # noqa: ARG002
        """Handle a call from a task or a fetcher. `name` selects the action. Return the reply, or None if it was sent in parts."""
        if self._more is not None:
            # Let the call finish if the connection is lost: the caller may reconnect and repeat the call to get its result.
            answer = self.run(None, self._more(name, body))
            if answer is not None:
                return answer
        raise FetcherError(f"the {self.what} has no action {name!r}")

    def run(self, call: Call | None, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop and return its result. Cancels the coroutine if the caller of `call` is gone."""
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
        """Wait up to `seconds` for a coroutine. Return whether it is done. If the caller is gone, cancel it and raise `CallerGone`."""
        give_up_at = time.monotonic() + seconds
        while not concurrent.futures.wait((future,), min(_CANCEL_CHECK_SECONDS, seconds)).done:
            if call is not None and call.gone:
                future.cancel()
                raise CallerGone
            if time.monotonic() >= give_up_at:
                return False
        return True

    def result(self, call: Call | None, future: concurrent.futures.Future[T]) -> T:
        """Wait for a coroutine, and return its result or raise its error. Wraps errors of other libraries in `FetcherError`."""
        self.done(call, future, inf)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise Stopped from None
        except KinesisEfoError:
            raise
        except Exception as error:
            raise FetcherError(f"the {self.what} failed: {type(error).__name__}: {error}") from error


def decoded(data: bytes, kind: type[T]) -> T:
    """Decode a call's message as an instance of `kind`. Raises `FetcherError` if the message is invalid."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FetcherError(f"not a {kind.__name__}: {error}") from None
