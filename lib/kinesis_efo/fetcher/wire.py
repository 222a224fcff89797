"""One end of a connection between the processes of a run: frames over a Unix socket on one host, over TCP with TLS
between hosts. Blocking, for one thread at a time.

Whoever accepts greets, and answers each request with one frame, or with several up to `END`. A frame is its kind, the length of its
head and of what follows; the head, a message in JSON; and raw bytes. Both ends are always of one version of the library.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

GREETING: Final = b"kinesis-efo 1\n"
"""What a service says first. Without it, nobody would know what has accepted: a host behind it may be gone."""

MOST_HEAD: Final = 16 << 20
"""Longest head of a frame, bytes."""

ALONE_BYTES: Final = 64 << 10
"""Bytes of this size or more are sent as they are. Smaller ones are copied together: each call has its price."""

UNHEARD_SECONDS: Final = 20.0
"""A host that has not confirmed for so long what was sent to it has vanished."""

_UNIX: Final = getattr(socket, "AF_UNIX", None)
_PREFIX: Final = struct.Struct(">BIQ")
_UNACKED_AT, _LAST_ACK_AT = 24, 56
"""Where Linux has both in its `tcp_info`: segments that are not confirmed, and milliseconds since anything was."""

Data: TypeAlias = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a frame is."""

    REQUEST = 1
    ANSWER = 2
    EVENTS = 3
    END = 4
    ERROR = 5
    REFUSED = 6


class Frame(NamedTuple):
    """A frame as it arrived.

    Attributes:
        kind: What it is.
        head: Its message.
        body: What follows, read-only.
    """

    kind: Kind
    head: bytes
    body: memoryview


class LostError(ConnectionError):
    """The other side has closed the connection, or it is broken, or what arrives is no frame."""


class Wire:
    """One end of a connection.

    Args:
        sock: Its socket, connected.
        allocate: Makes the memory for a body of so many bytes.
    """

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

    # -- sending

    def greet(self, seconds: float) -> None:
        """Say that this is a service of this library.

        Raises:
            LostError: See the class.
            TimeoutError: It took longer.
        """
        self._send(GREETING, time.monotonic() + seconds)

    def send(self, kind: Kind, head: bytes = b"", parts: Iterable[Data] = (), give_up_at: float = inf) -> None:
        """Send a frame.

        Args:
            kind: What it is.
            head: Its message.
            parts: What follows.
            give_up_at: Until when the other side may take it, monotonic seconds.

        Raises:
            LostError: See the class.
            TimeoutError: The other side has not taken it in time. The connection is of no use any more.
        """
        parts = list(parts)
        prefix = _PREFIX.pack(kind, len(head), sum(map(len, parts)))
        for piece in _pieces([prefix + head, *parts]):
            self._send(piece, give_up_at)

    def _send(self, piece: Data, give_up_at: float) -> None:
        left = memoryview(piece)
        while left:
            seconds = give_up_at - time.monotonic()
            if seconds <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(None if seconds == inf else seconds)
                left = left[self._socket.send(left) :]
            except TimeoutError:
                raise
            except OSError as error:
                raise LostError(words(error)) from None

    # -- receiving

    def greeted(self, seconds: float) -> None:
        """Wait for the greeting.

        Raises:
            LostError: See the class; something else has answered.
            TimeoutError: It took longer.
        """
        said = self._fill(bytearray(len(GREETING)), seconds)
        if said != GREETING:
            raise LostError(f"something else answers there, or another version of kinesis-efo: {bytes(said)!r}")

    def receive(self, seconds: float | None) -> Frame:
        """The next frame.

        Args:
            seconds: Longest time without a byte.

        Raises:
            LostError: See the class.
            TimeoutError: Nothing came for longer.
        """
        kind, head, size = self.receive_head(seconds, MOST_HEAD)
        return Frame(kind, head, self.receive_body(size, seconds))

    def receive_head(self, seconds: float | None, most: int, give_up_at: float = inf) -> tuple[Kind, bytes, int]:
        """The beginning of the next frame: its kind, its head, and the bytes that follow.

        Args:
            seconds: Longest time without a byte.
            most: Longest head.
            give_up_at: Until when all of it may come, monotonic seconds.

        Raises:
            LostError, TimeoutError: See `receive`.
        """
        kind, head, size = _PREFIX.unpack(self._fill(bytearray(_PREFIX.size), seconds, give_up_at))
        if kind not in list(Kind) or head > most:
            raise LostError(f"what comes is no frame: {kind}, with a head of {head} bytes")
        return Kind(kind), bytes(self._fill(bytearray(head), seconds, give_up_at)), size

    def receive_body(self, size: int, seconds: float | None, give_up_at: float = inf) -> memoryview:
        """What follows a head.

        Args:
            size: Bytes.
            seconds: Longest time without a byte.
            give_up_at: Until when all of it may come, monotonic seconds.

        Raises:
            LostError, TimeoutError: See `receive`.
        """
        if not size:
            return memoryview(b"")
        return memoryview(self._fill(self._allocate(size), seconds, give_up_at)).toreadonly()

    def _fill(self, memory: Any, seconds: float | None, give_up_at: float = inf) -> Any:
        left = memoryview(memory).cast("B")
        while left:
            longest = min(inf if seconds is None else seconds, give_up_at - time.monotonic())
            if longest <= 0:
                raise TimeoutError
            try:
                self._socket.settimeout(None if longest == inf else longest)
                received = self._socket.recv_into(left)
            except TimeoutError:
                raise
            except OSError as error:
                raise LostError(words(error)) from None
            if not received:
                raise LostError("it was closed")
            left = left[received:]
        return memory

    # -- the other side

    @property
    def speaks(self) -> bool:
        """Whether something has come that was not received yet, and be it the end."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    @property
    def unheard(self) -> bool:
        """Whether the other side's host has confirmed nothing for long of what was sent. One that is only busy confirms."""
        if not self._is_tcp or not hasattr(socket, "TCP_INFO"):
            return False
        told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (unacked,), (last,) = struct.unpack_from("=I", told, _UNACKED_AT), struct.unpack_from("=I", told, _LAST_ACK_AT)
        return bool(unacked and last >= UNHEARD_SECONDS * 1000)

    # -- the end

    def cut(self) -> None:
        """End the connection for both sides, also if another thread uses it: what that does next fails."""
        with contextlib.suppress(OSError):
            # Not the method of a socket with TLS, which would go on in the clear.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's end."""
        self._socket.close()


def _pieces(parts: Iterable[Data]) -> Iterator[Data]:
    """What is sent at a time."""
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


def words(error: OSError) -> str:
    """What an error says, without its number."""
    if isinstance(error, ssl.SSLError):
        return str(getattr(error, "verify_message", "") or error.reason or error)
    return error.strerror or str(error)
