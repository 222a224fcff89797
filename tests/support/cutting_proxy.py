"""A TCP proxy that cuts connections with a RST, as middleboxes and restarting load balancers do."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType


class CuttingProxy:
    """A proxy for a port of this machine.

    Args:
        target: Port to forward to.
        cut: Returns for the number of a connection (from 0) after how many bytes of requests to reset it; None for never.
        answer: Count the bytes of answers instead: the request was carried out then.

    Attributes:
        port: The proxy's port.
        cuts: Number of connections reset.
        passed: All bytes that passed, in both directions, as they came.
    """

    def __init__(self, target: int, cut: Callable[[int], int | None], *, answer: bool = False) -> None:
        self._target = target
        self._cut = cut
        self._answer = answer
        self._numbers = itertools.count()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port: int = self._listening.getsockname()[1]
        self.cuts = 0
        self.passed = bytearray()

    def __enter__(self) -> CuttingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in [self._listening, *self._sockets]:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            limit = self._cut(next(self._numbers))
            there = (client, server, None if self._answer else limit, client)
            back = (server, client, limit if self._answer else None, client)
            for way in (there, back):
                threading.Thread(target=self.forward, args=way, daemon=True).start()

    def forward(self, source: socket.socket, sink: socket.socket, limit: int | None, client: socket.socket) -> None:
        seen = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(16_384):
                seen += len(piece)
                self.passed += piece
                if limit is not None and seen >= limit:
                    self.cuts += 1
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    # Else the other thread's recv() would keep the socket open, and delay the RST.
                    with contextlib.suppress(OSError):
                        client.shutdown(socket.SHUT_RD)
                    client.close()
                    return
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
