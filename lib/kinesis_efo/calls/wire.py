"""One end of a connection between processes of a run: mutual authentication, then frames. Blocking, for one thread at a time.

First, the service sends a greeting, which ensures that both ends use the same version of this protocol, and a challenge. The caller sends a
challenge, too, and its proof that it has the secret; then the service sends its proof. The secret itself is never sent. After that, the
service replies to each request with one frame, or with several, the last of which is `END`. A frame consists of its kind, the lengths of
its head and its body, the head (a JSON message), and the body.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from kinesis_efo import errors
from kinesis_efo.errors import FetcherError, KinesisEfoError, OptionsError

GREETING: Final = b"kinesis-efo 2\n"
"""The first bytes that a service sends, with the version of this protocol."""

PROOF_BYTES: Final = 32
"""Size of a challenge and of a proof, in bytes."""

MOST_HEAD: Final = 16 << 20
"""Maximum bytes of a frame's head."""

ALONE_BYTES: Final = 64 << 10
"""Parts of at least this size are sent separately. Smaller parts are joined, to make fewer system calls."""

_UNIX: Final = getattr(socket, "AF_UNIX", None)
_REFUSAL: Final = bytes(PROOF_BYTES)
_PREFIX: Final = struct.Struct(">BIQ")
_UNACKED_AT, _LAST_ACK_AT = 24, 56
"""Offsets in Linux' `tcp_info`, to detect unreachable hosts: unacknowledged segments, and milliseconds since the last acknowledgement."""

Data: TypeAlias = bytes | bytearray | memoryview


class Kind(IntEnum):
    """The type of a frame."""

    REQUEST = 1
    ANSWER = 2
    EVENTS = 3
    END = 4
    ERROR = 5
    REFUSED = 6


class Frame(NamedTuple):
    """A received frame: its type, its message as JSON, and its body, which is read-only."""

    kind: Kind
    head: bytes
    body: memoryview


class Request(msgspec.Struct, frozen=True):
    """The head of a request frame, which names the call."""

    name: str
    seconds: float | None = None  # How long the caller waits for the complete reply; None for no limit


class LostError(ConnectionError):
    """Raised if the connection is closed or broken, or if the received data is not a frame."""


class Wire:
    """One end of a connection, on a connected socket. `allocate` allocates memory for the body of a frame, given its size in bytes."""

    unacknowledged_seconds = 20.0
    """A host that has not acknowledged sent data for this many seconds counts as unreachable."""

    def __init__(self, sock: socket.socket, allocate: Callable[[int], Any] = bytearray) -> None:
        self._socket = sock
        self._allocate = allocate
        self._is_tcp = sock.family != _UNIX
        if not self._is_tcp:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def challenge(self, secrets: Sequence[str], channel: bytes, give_up_at: float) -> int | None:
        """Authenticate the caller and this service to each other. Return the index of the caller's secret; None if it is not in `secrets`.

        Proofs are bound to `channel`, the certificate's fingerprint. Raises `LostError` if the connection is lost, and `TimeoutError` after
        `give_up_at` (monotonic seconds).
        """
        own = os.urandom(PROOF_BYTES)
        self._send(GREETING + own, give_up_at)
        answer = bytes(self._fill(bytearray(2 * PROOF_BYTES), None, give_up_at))
        theirs, proof = answer[:PROOF_BYTES], answer[PROOF_BYTES:]
        for index, secret in enumerate(secrets):
            if hmac.compare_digest(proof, _proof(secret, b"caller", own, theirs, channel)):
                self._send(_proof(secret, b"service", own, theirs, channel), give_up_at)
                return index
        self._send(_REFUSAL, give_up_at)
        return None

    def prove(self, secret: str, channel: bytes, give_up_at: float) -> bool:
        """Respond to a service's challenge, and verify the service's proof. Return whether the service accepts the secret.

        Proofs are bound to `channel`, the certificate's fingerprint. Raises `LostError` if the connection is lost or the service's proof is
        wrong, and `TimeoutError` after `give_up_at` (monotonic seconds).
        """
        greeting = bytes(self._fill(bytearray(len(GREETING)), None, give_up_at))
        if greeting != GREETING:
            raise LostError(f"something else answers there, or another version of kinesis-efo: {greeting!r}")
        theirs, own = bytes(self._fill(bytearray(PROOF_BYTES), None, give_up_at)), os.urandom(PROOF_BYTES)
        self._send(own + _proof(secret, b"caller", theirs, own, channel), give_up_at)
        proof = bytes(self._fill(bytearray(PROOF_BYTES), None, give_up_at))
        if proof == _REFUSAL:
            return False
        if not hmac.compare_digest(proof, _proof(secret, b"service", theirs, own, channel)):
            raise LostError("the service does not have the secret of this run")
        return True

    def send(self, kind: Kind, head: bytes = b"", parts: Iterable[Data] = (), give_up_at: float = inf) -> None:
        """Send a frame, whose body is the concatenated `parts`. Raises `LostError` if the connection is lost, and `TimeoutError` after
        `give_up_at` (monotonic seconds). The connection is unusable after either error."""
        parts = list(parts)
        prefix = _PREFIX.pack(kind, len(head), sum(map(len, parts)))
        for piece in _pieces([prefix + head, *parts]):
            self._send(piece, give_up_at)

    def _send(self, piece: Data, give_up_at: float) -> None:
        left = memoryview(piece)
        while left:
            left = left[self._moved(self._socket.send, left, give_up_at - time.monotonic()) :]

    def receive(
        self, seconds: float | None, most_head: int = MOST_HEAD, most_body: float = inf, give_up_at: float = inf
    ) -> Frame:
        """Receive the next frame, whose head and body have at most `most_head` and `most_body` bytes.

        Raises `TimeoutError` after `seconds` without a byte or after `give_up_at` (monotonic seconds), and `LostError` if the connection is
        lost, or if the data is too large or not a frame.
        """
        kind, head, body = _PREFIX.unpack(self._fill(bytearray(_PREFIX.size), seconds, give_up_at))
        if kind not in list(Kind) or head > most_head or body > most_body:
            raise LostError(
                f"what was received is not a frame: {kind}, with a head of {head} bytes and a body of {body}"
            )
        message = bytes(self._fill(bytearray(head), seconds, give_up_at))
        data = (
            memoryview(self._fill(self._allocate(body), seconds, give_up_at)).toreadonly() if body else memoryview(b"")
        )
        return Frame(Kind(kind), message, data)

    def _fill(self, memory: Any, seconds: float | None, give_up_at: float = inf) -> Any:
        left = memoryview(memory).cast("B")
        while left:
            longest = min(inf if seconds is None else seconds, give_up_at - time.monotonic())
            received = self._moved(self._socket.recv_into, left, longest)
            if not received:
                raise LostError("it was closed")
            left = left[received:]
        return memory

    def _moved(self, move: Callable[[memoryview], int], data: memoryview, seconds: float) -> int:
        """Call `move` (the socket's `send` or `recv_into`) with a timeout. Return the number of bytes moved."""
        if seconds <= 0:
            raise TimeoutError
        try:
            self._socket.settimeout(None if seconds == inf else seconds)
            return move(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise LostError(error_text(error)) from None

    @property
    def speaks(self) -> bool:
        """Whether there is data to read, or the other end has closed the connection. Does not block."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    @property
    def unreachable(self) -> bool:
        """Whether the other host is unreachable: even a busy host acknowledges data within `unacknowledged_seconds`."""
        if not self._is_tcp or not hasattr(socket, "TCP_INFO"):
            return False
        told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (unacked,), (last,) = struct.unpack_from("=I", told, _UNACKED_AT), struct.unpack_from("=I", told, _LAST_ACK_AT)
        return bool(unacked and last >= self.unacknowledged_seconds * 1000)

    def cut(self) -> None:
        """Shut down the connection for both ends. A thread that is using the connection gets an error."""
        with contextlib.suppress(OSError):
            # Do not call the `shutdown` of a TLS socket, which discards TLS first: another thread could then send or receive cleartext.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _pieces(parts: Iterable[Data]) -> Iterator[Data]:
    """Yield the parts to send, with successive small parts joined."""
    small: list[Data] = []
    for part in parts:
        if len(part) >= ALONE_BYTES:
            if small:
                yield b"".join(small)
                small = []
            yield part
        else:
            small.append(part)
    if small:
        yield b"".join(small)


def error_text(error: OSError) -> str:
    """Return an error's message without its error number."""
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "verify_message", "") or error.reason or error)
    return error.strerror or str(error)


def _proof(secret: str, role: bytes, of_service: bytes, of_caller: bytes, channel: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"".join((role, of_service, of_caller, channel)), "sha256")


def pack_error(error: KinesisEfoError) -> bytes:
    """Encode an error, so that it can be raised in the other process."""
    return msgspec.json.encode((type(error).__name__, str(error), error.data))


def unpack_error(data: bytes) -> KinesisEfoError:
    """Decode an error encoded by `pack_error`. The result has the original type or, if that is unknown here, is a `FetcherError`."""
    try:
        name, message, known = msgspec.json.decode(data, type=tuple[str, str, dict[str, str]])
    except msgspec.MsgspecError:
        return FetcherError(f"the fetcher failed without an error message: {data[:200]!r}")
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, KinesisEfoError) and kind is not OptionsError:
        return kind(message).restore(known)
    return FetcherError(message.replace("\n", "; "))
