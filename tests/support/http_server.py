"""HTTP servers of a few lines, which stand in for others."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers requests, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        """The body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send an answer; an underscore in a header's name stands for a hyphen."""
        self.send_response(status)
        for name, value in {**headers, "Content_Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


@contextmanager
def served(kind: type[Handler], certificate: str | None = None, **attributes: Any) -> Iterator[str]:
    """The URL of a server whose handlers have these attributes; over TLS with the key and certificate in a file."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), attributes)) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that has gone
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
