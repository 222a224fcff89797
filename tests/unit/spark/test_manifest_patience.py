"""A manifest that cannot be had: `retryTimeout` says how long it is waited for, and nothing of the SDK's adds to that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from kinesis_efo.errors import ManifestError
from kinesis_efo.spark.source import KinesisEfoSource

pytestmark = pytest.mark.spark


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers.get("X-Amz-Target") or self.path)
            answer(self)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", asked
        finally:
            http.shutdown()


def fails(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(500)
    handler.send_header("Content-Length", "2")
    handler.end_headers()
    handler.wfile.write(b"{}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("location", "silent", "role"), [("s3://bucket/app.json", False, False), ("ssm:///app", True, True)]
)
def test_the_manifest_is_awaited_no_longer_than_asked(
    location: str, silent: bool, role: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    over = Event()
    with server(lambda handler: over.wait(60) and None if silent else fails(handler)) as (url, asked):
        options = {
            "manifest": location,
            "endpointUrl": url,
            "region": "us-east-1",
            "retryTimeout": "2s",
            **({"roleArn": "arn:aws:iam::123456789012:role/reader"} if role else {}),
        }
        began = time.monotonic()
        with pytest.raises(ManifestError, match=f"manifest {location} cannot be"):
            KinesisEfoSource(options).streamReader(KinesisEfoSource(options).schema())
        seconds = time.monotonic() - began
        over.set()
    assert asked
    # One call that began just before the end may take as long again.
    assert seconds < 8
