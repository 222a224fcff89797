"""Unix sockets by which processes of one user reach each other within a host: cheaper than TCP, and nobody else can listen in.

Their names are abstract, as Linux has them: they belong to a network namespace, need no directory, and are gone with their process.
Names have no permissions, so that both ends look at whose process the other one is.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
from typing import Final

_BACKLOG: Final = 1024
_CREDENTIALS: Final = struct.Struct("=iII")


def listen() -> socket.socket | None:
    """A socket with a name of its own that listens; None if the system has no such names."""
    if sys.platform != "linux":
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(f"\0kinesis-efo-{secrets.token_hex(16)}")
    sock.listen(_BACKLOG)
    return sock


def name(sock: socket.socket) -> str:
    """The name of a socket that `listen` has made, for `connected`."""
    return bytes(sock.getsockname()[1:]).decode()


def connected(name: str, seconds: float) -> socket.socket:
    """Connect to a socket that `listen` has made.

    Args:
        name: Its name.
        seconds: Longest time.

    Raises:
        OSError: There is none in this network namespace, or it is another user's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect(f"\0{name}")
        if not is_own(sock):
            raise PermissionError("a process of another user listens there")
    except BaseException:
        sock.close()
        raise
    return sock


def is_own(sock: socket.socket) -> bool:
    """Whether the process at the other end is one of this user."""
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())
