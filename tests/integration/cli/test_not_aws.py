"""Every command where something else than AWS answers: a captive portal, or a proxy with an error of its own."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from kinesis_efo_local import NoFaults
from kinesis_efo_local.fault_injection import Step
from tests.integration.cli.conftest import Result, Switch
from tests.support.world import World

Run = Callable[..., Result]
PAGE = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>Please sign in.</body></html>"


class _Portal(http.server.BaseHTTPRequestHandler):
    """Answers every request with one page."""

    protocol_version = "HTTP/1.1"
    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    do_GET = do_PUT = do_POST

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@pytest.fixture(params=[200, 503])
def portal(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server that answers HTML with an HTTP status."""
    handler = type("Portal", (_Portal,), {"status": request.param})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_doctor_says_it_first(run: Run, world: Callable[..., World], portal: str) -> None:
    found = run("doctor", "--manifest", world().manifest, "--endpoint-url", portal, "--json")
    first = found.data["findings"][0]
    assert (found.code, first["subject"], first["status"]) == (1, "HTTP path", "failed")
    assert "proxy" in first["detail"] + first["fix"]
    assert "<" not in first["detail"]


def test_check_of_the_manifest(run: Run, world: Callable[..., World], portal: str) -> None:
    found = run("manifest", "check", "--manifest", world().manifest, "--endpoint-url", portal, "--json")
    assert found.data["passed"] == 0
    assert all("proxy" in each["detail"] + each["fix"] and each["fix"] for each in found.data["findings"])


@pytest.mark.parametrize(
    "command",
    [
        "lag",
        "leases list",
        "shards",
        "tail --stream orders --from TRIM_HORIZON",
        "tail --stream another",
        "put --stream another",
        "put --stream orders",
    ],
)
def test_an_error_names_the_proxy(run: Run, world: Callable[..., World], portal: str, command: str) -> None:
    words = [*command.split(), "--manifest", world().manifest, "--endpoint-url", portal]
    found = run(*words, stdin="one\n")
    assert (found.code, found.out) == (1, "")
    assert "proxy" in found.err
    assert "<" not in found.err


class WithoutInitialResponse(NoFaults):
    """Carries out dry runs, and leaves out the first frame of subscriptions."""

    async def before(self, request: Any) -> None:
        if request.operation == "SubscribeToShard":
            request.params.pop("DryRun", None)

    def frame(self, subscription: Any, frame: bytes) -> Iterable[Step]:
        return () if b"initial-response" in frame else super().frame(subscription, frame)


def test_a_subscription_without_its_first_frame(run: Run, world: Callable[..., World], switch: Switch) -> None:
    here = world()
    switch.faults = WithoutInitialResponse()
    found = run("doctor", "--manifest", here.manifest, "--json")
    [line] = [each for each in found.data["findings"] if each["subject"] == "subscribing to orders"]
    assert (line["status"], "initial-response" in line["detail"]) == ("unknown", True)
    assert "look for a proxy" in line["fix"]


def test_a_remote_manifest(run: Run, aws: Any, portal: str) -> None:
    found = run("manifest", "show", "--manifest", "ssm:///kinesis-efo/test/lake", "--endpoint-url", portal)
    assert found.code == 1
    assert "manifest ssm:///kinesis-efo/test/lake cannot be loaded" in found.err
    assert "proxy" in found.err


def test_an_object_in_s3_may_be_called_html(run: Run, world: Callable[..., World]) -> None:
    here = world()
    s3 = here.aws.client("s3")
    s3.create_bucket(Bucket="pages")
    s3.put_object(Bucket="pages", Key="lake", Body=here.manifest.read_bytes(), ContentType="text/html")
    assert run("manifest", "show", "--manifest", "s3://pages/lake").code == 0
