"""A query starts while AWS throttles and fails; and what is said where the process that plans it is killed."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kinesis_efo.driver.reason import reason
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_for_rows, wait_until

pytestmark = pytest.mark.spark40

FAULTS = {
    "AmazonSSM.GetParameter": (400, "ThrottlingException"),
    "DynamoDB_20120810.DescribeTable": (500, "InternalServerError"),
    "Kinesis_20131202.ListShards": (400, "LimitExceededException"),
}
SECONDS = 6.0


@contextmanager
def faulty(endpoint: str) -> Iterator[tuple[str, dict[str, int]]]:
    """A proxy that refuses some operations for some seconds from their first call on; its URL, and the refusals by operation."""
    first: dict[str, float] = {}
    refused: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            target = self.headers.get("X-Amz-Target", "")
            if target in FAULTS and time.monotonic() - first.setdefault(target, time.monotonic()) < SECONDS:
                refused[target] = refused.get(target, 0) + 1
                status, code = FAULTS[target]
                self._answer(
                    status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps({"__type": code}).encode()
                )
                return
            sent = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            try:
                with urllib.request.urlopen(urllib.request.Request(endpoint, body, sent)) as answer:
                    self._answer(answer.status, dict(answer.headers), answer.read())
            except urllib.error.HTTPError as answer:
                with answer:
                    self._answer(answer.code, dict(answer.headers), answer.read())

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() in ("content-type", "x-amzn-requestid"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", refused
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
def test_a_start_waits_until_aws_answers_and_a_killed_planner_is_explained(
    world: Callable[..., World], queries: Queries
) -> None:
    w = world()
    w.put([("k", b"%d" % number) for number in range(20)])
    w.aws.client("ssm").put_parameter(Name=f"/{w.lease_table}", Value=w.manifest.read_text(), Type="String")
    with faulty(w.aws.endpoint_url) as (endpoint, refused):
        options = {"manifest": f"ssm:///{w.lease_table}", "endpointUrl": endpoint, "region": "us-east-1"}
        options["readMode"] = "polling"
        query = queries.start(queries.load(w, **options), "late")
        wait_for_rows(query, 20)
        assert refused.keys() == FAULTS.keys()
        assert refused["DynamoDB_20120810.DescribeTable"] > 3, "more than the SDK tries by itself"

        w.reader().parent().kill()
        wait_until(lambda: query.exception() is not None, 60, "the query to notice")
        error = query.exception()
        assert error is not None
        assert "ended without a word" in reason(error), str(error)[:2000]
