"""A proxy that accepts connections and then does too little."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

STALLS: Final = ("silent", "no TLS", "drips")
"""It never answers CONNECT; it does, but no TLS hello follows; it answers CONNECT byte by byte, without an end."""


@contextmanager
def stalled_proxy(stall: str) -> Iterator[str]:
    """Run such a proxy; yields its URL."""
    open_ones: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.recv(1 << 16)
            if stall == "no TLS":
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            elif stall == "drips":
                connection.sendall(b"HTTP/1.1 200 Connection established\r\nX-Slow: ")
                while connection.send(b"x"):
                    time.sleep(0.2)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                open_ones.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for connection in open_ones:
                connection.close()
