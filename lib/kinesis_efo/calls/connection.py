"""A connection to a service: tries the service's addresses, authenticates with the secret, and raises errors that the service returns.

Connections within a host stay open for later tasks of a Python worker, since connecting takes longer than reading a small micro-batch.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

import msgspec

from kinesis_efo.calls.address import FetcherAddress, connect_nearby, network_namespace
from kinesis_efo.calls.tls import CERTIFICATE_NAME, caller_context, fingerprint
from kinesis_efo.calls.wire import Frame, Kind, LostError, Request, Wire, error_text, unpack_error
from kinesis_efo.errors import FetcherError, FetcherRefusedError, FetcherUnreachableError
from kinesis_efo.hosts import LOOPBACK

T = TypeVar("T")
AT_MOST: Final = 4
"""Maximum number of cached connections. A Python worker runs tasks of all queries, and so needs several. The oldest is closed first."""

_CONNECT_SECONDS: Final = 5.0
_LAST_CONNECT_SECONDS: Final = 20.0
"""Timeout for the last address, longer than for the others: a busy host responds slowly, and no other address is left to try."""
_SEND_SECONDS: Final = 20.0

_reached: dict[tuple[str, ...], str] = {}
"""Maps each service's hosts to the host that was last reached. The next task in this process tries this host first."""


class ConnectionCache:
    """Caches up to `at_most` open connections while they are not in use. Thread-safe."""

    def __init__(self, at_most: int = AT_MOST) -> None:
        self._at_most = at_most
        self._wires: OrderedDict[Hashable, Wire] = OrderedDict()
        self._lock = threading.Lock()

    def pop(self, where: Hashable) -> Wire | None:
        """Remove the connection to `where` from the cache and return it; None if it is not cached."""
        with self._lock:
            return self._wires.pop(where, None)

    def put(self, where: Hashable, wire: Wire) -> None:
        """Cache a connection to `where`, replacing a cached one. Closes broken connections and, if the cache is full, the oldest one."""
        with self._lock:
            ended = [each for each, kept in self._wires.items() if each == where or kept.speaks]
            closing = [self._wires.pop(each) for each in ended]
            self._wires[where] = wire
            if len(self._wires) > self._at_most:
                closing.append(self._wires.popitem(last=False)[1])
        for each in closing:
            each.close()

    def close(self) -> None:
        with self._lock:
            wires = list(self._wires.values())
            self._wires.clear()
        for wire in wires:
            wire.close()

    def forked(self) -> None:
        """Close all connections in this process, which was just forked. They stay open in the parent process."""
        # Replace the lock: if another thread of the parent held it during the fork, nothing would release it in this process.
        self._lock = threading.Lock()
        self.close()


CONNECTIONS: Final = ConnectionCache()
"""The connection cache of this process."""
atexit.register(CONNECTIONS.close)
if hasattr(os, "register_at_fork"):  # missing on Windows, which does not fork
    os.register_at_fork(after_in_child=CONNECTIONS.forked)


class Connection:
    """One connection to one service, for one thread. The first call connects; if the connection was lost, the next call reconnects.

    Args:
        address: The service's address, whose hosts are tried in order.
        secret: The run's secret, for authentication.
        namespace: This process's network namespace.
        connect_seconds: Timeout for connecting to each host except the last.
        last_connect_seconds: Timeout for connecting to the last host.
        kept: The cache for connections to services on this machine; None to always close the connection.
        allocate: Allocates memory for the body of a frame, given its size in bytes.
    """

    service = "fetcher"
    """The name of the service, for messages."""

    def __init__(
        self,
        address: FetcherAddress,
        secret: str,
        *,
        namespace: str | None = None,
        connect_seconds: float = _CONNECT_SECONDS,
        last_connect_seconds: float = _LAST_CONNECT_SECONDS,
        kept: ConnectionCache | None = None,
        allocate: Callable[[int], Any] = bytearray,
    ) -> None:
        self._address = address
        self._secret = secret
        # The cache's key includes the secret, because a cached connection is already authenticated with a secret.
        self._place = (address, secret)
        self._namespace = network_namespace() if namespace is None else namespace
        self._connect_seconds = connect_seconds
        self._last_connect_seconds = last_connect_seconds
        self._location = str(address)
        self._wire: Wire | None = None
        self._kept = kept
        self._allocate = allocate
        self._local = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.drop()
        self.close()

    def close(self) -> None:
        """Return the connection to the cache if the service is on this machine; otherwise close it."""
        if self._wire is not None and self._kept is not None and self._local:
            self._kept.put(self._place, self._wire)
            self._wire = None
        self.drop()

    def action(self, name: str, request: msgspec.Struct, answer: type[T], seconds: float) -> T:
        """Make a call and return its reply, decoded as `answer`. Raises the service's error, or FetcherUnreachableError after `seconds`."""
        with self.translated():
            body = msgspec.json.encode(request)
            _, frame = self.call(Request(name), body, seconds, whole=True)
            if frame.kind is not Kind.ANSWER:
                raise LostError(f"a frame without a reply: {frame.kind.name}")
            return msgspec.json.decode(frame.head, type=answer)

    def call(self, request: Request, body: bytes, seconds: float, *, whole: bool = False) -> tuple[Wire, Frame]:
        """Make a call, and return the connection and the first frame of the reply. Must be called in a `translated` context.

        `seconds` limits the time between two bytes. With `whole`, it limits the time for the whole frame, which must not have a body.
        If an open connection turns out to be broken, the call is sent again, so the service may receive it twice.
        """
        head = msgspec.json.encode(request)

        def ask(wire: Wire) -> tuple[Wire, Frame]:
            wire.send(Kind.REQUEST, head, (body,), time.monotonic() + _SEND_SECONDS)
            if not whole:
                return wire, self.checked(wire.receive(seconds))
            return wire, self.checked(wire.receive(seconds, most_body=0, give_up_at=time.monotonic() + seconds))

        if self._wire is None and self._kept is not None and (kept := self._kept.pop(self._place)) is not None:
            self._wire, self._local = kept, True
            self._location = self._address.location(LOOPBACK)
        if self._wire is not None:
            try:
                return ask(self._wire)
            except LostError:
                # The service may have closed an idle connection: connect again.
                self.drop()
        return ask(self._connected())

    def checked(self, frame: Frame) -> Frame:
        """Return a frame of a reply, or raise the service's error if the frame contains one."""
        if frame.kind is Kind.REFUSED:
            raise self._refused()
        if frame.kind is Kind.ERROR:
            raise unpack_error(frame.head)
        return frame

    def _connected(self) -> Wire:
        hosts = self._address.hosts_from(self._namespace)
        tried: list[str] = []
        for host in sorted(hosts, key=lambda host: host != _reached.get(hosts)):
            seconds = self._connect_seconds if len(tried) < len(hosts) - 1 else self._last_connect_seconds
            self._location, self._local = self._address.location(host), host == LOOPBACK
            began = time.monotonic()
            try:
                self._wire = self._connect(host, seconds)
            except OSError as error:
                took = time.monotonic() - began
                tried.append(f"{self._location} ({_reason(error)}{f', after {took:.0f} s' if took >= 1 else ''})")
            else:
                _reached[hosts] = host
                return self._wire
        raise self._unreachable(tried)

    def _connect(self, host: str, seconds: float) -> Wire:
        if host == LOOPBACK and self._namespace == self._address.namespace and self._address.nearby:
            # Prefer the Unix socket, which takes half the CPU time of TCP and does not need TLS.
            try:
                return self._authenticated(connect_nearby(self._address.nearby, seconds), seconds)
            except OSError as error:
                if self._address.certificate is None:
                    # Without TLS, do not fall back to TCP: once the service has ended, another user of the host may listen at its port.
                    raise ConnectionError(f"by its Unix socket: {error_text(error)}") from None
        sock = socket.create_connection((host, self._address.port), seconds)
        if self._address.certificate is None:
            return self._authenticated(sock, seconds)
        with contextlib.closing(sock):
            safe = caller_context(self._address.certificate).wrap_socket(sock, server_hostname=CERTIFICATE_NAME)
        return self._authenticated(safe, seconds)

    def _authenticated(self, sock: socket.socket, seconds: float) -> Wire:
        certificate = sock.getpeercert(binary_form=True) if isinstance(sock, ssl.SSLSocket) else None
        try:
            wire = Wire(sock, self._allocate)
            if not wire.prove(self._secret, fingerprint(certificate), time.monotonic() + seconds):
                raise self._refused()
        except BaseException:
            sock.close()
            raise
        return wire

    def _refused(self) -> FetcherRefusedError:
        return FetcherRefusedError(
            f"the {self.service} at {self._location} rejects this run's secret: it belongs to another run"
        )

    def drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _unreachable(self, tried: Iterable[str]) -> FetcherUnreachableError:
        if not tried:
            return FetcherUnreachableError(
                f"the {self.service} listens on the loopback address only, and this task is in another network namespace: set an address "
                "that tasks can reach (kinesis-efo option 'fetcherHost')"
            )
        return FetcherUnreachableError(
            f"no {self.service} answers at {', '.join(tried)}. It runs next to the driver while its query runs. Allow executors to connect "
            "to it (security groups, network policies; kinesis-efo option 'fetcherPort' fixes its port), or set an address that they can "
            "reach ('fetcherHost')"
        )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate errors in this context to this library's errors, and close the connection after any error."""
        try:
            yield
        except Exception as error:
            self.drop()
            at = f"the {self.service} at {self._location}"
            match error:
                case TimeoutError():
                    raise FetcherUnreachableError(f"{at} did not answer in time") from None
                case LostError():
                    ended = f"has stopped in the middle of a call ({error}); its query has ended, or restarts"
                    raise FetcherUnreachableError(f"{at} {ended}") from None
                case msgspec.MsgspecError() | UnicodeDecodeError():
                    raise FetcherError(f"{at}: {error}") from None
            raise


def _reason(error: OSError) -> str:
    reason = error_text(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"not the fetcher's certificate: {reason}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {reason}"
    return reason
