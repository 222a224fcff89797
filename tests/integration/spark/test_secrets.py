"""No secret is told by a query on real Spark: not in its plan, its progress, its checkpoint, its configuration, its failure or Spark's UI."""

import base64
import json
import re
import secrets
import socket
import urllib.request
from collections.abc import Callable
from ipaddress import ip_address
from random import Random
from typing import Any

import pytest

from tests.integration.spark.conftest import CREDENTIALS, Queries, listening
from tests.support.world import World, wait_for_rows, wait_until

pytestmark = pytest.mark.spark43

RUN_SECRET = re.compile(r"(?<![\w-])(?=[A-Za-z]{0,42}[\d_-])[\w-]{43}(?![\w-])")
"""What a secret of a run looks like: it lives in processes that Spark started, so it is recognised and not known here. Names of
Spark's rules may be as long, but have letters only; one in 7,000 secrets has, too."""


def ui_pages(queries: Queries, run: str) -> dict[str, str]:
    """The pages of Spark's UI that show a query: its jobs, its plans, its tasks and the configuration."""
    context = queries.spark.sparkContext
    pages = {}

    def fetch(path: str) -> str:
        with urllib.request.urlopen(f"{context.uiWebUrl}{path}") as answer:
            pages[path] = answer.read().decode()
        return pages[path]

    for path in ("/jobs/", "/stages/", "/environment/", "/executors/", "/SQL/"):
        for link in re.findall(r'href="(/(?:jobs/job|stages/stage)/\?id=[^"]+)"', fetch(path))[:3]:
            fetch(link.replace("&amp;", "&"))
    fetch(f"/StreamingQuery/statistics/?id={run}")
    # Newer versions fill the list of plans in by a script.
    for execution in json.loads(fetch(f"/api/v1/applications/{context.applicationId}/sql?length=1000"))[-3:]:
        fetch(f"/SQL/execution/?id={execution['id']}")
    return pages


def test_the_pattern_matches_a_secret() -> None:
    random = Random(43)
    for _ in range(100):
        secret = base64.urlsafe_b64encode(random.randbytes(32)).rstrip(b"=").decode()
        assert len(secret) == len(secrets.token_urlsafe(32))
        assert RUN_SECRET.search(f"secret={secret},")
    assert not RUN_SECRET.search("preserveAliasMetadataWhenCollapsingProjects")


def test_no_secret_is_shown(queries: Queries, world: Callable[..., World]) -> None:
    w = world({"orders": 2})
    w.put((f"k{n % 7}", b"payload of a customer") for n in range(100))
    # With the certificate in every partition, too.
    query = queries.start(queries.load(w, fetcherHost=socket.gethostname()), "secretive")
    wait_for_rows(query, 100)
    assert [ip_address(each).is_unspecified for each in listening(w.reader())] == [True]
    told: dict[str, Any] = {
        "plan": query._jsq.explainInternal(True),
        "progress": [progress.json for progress in query.recentProgress],
        "status": query.status,
        **ui_pages(queries, str(query.runId)),
        "configuration": queries.spark.sparkContext.getConf().getAll(),
        "checkpoint": [
            path.read_text(errors="replace")
            for path in queries.directory.rglob("*")
            if path.is_file() and path.parent.name != "state"
        ],
    }
    w.kinesis.deregister_stream_consumer(ConsumerARN=w.consumers["orders"])
    wait_until(lambda: query.exception() is not None, 60)
    told["exception"] = str(query.exception())
    assert "does not exist (any more)" in told["exception"]
    assert {path.split("?")[0] for path in told if "?" in path} >= {"/jobs/job/", "/stages/stage/", "/SQL/execution/"}
    assert "kinesis-efo" in told["plan"] or "orders" in str(told["progress"])
    for where, what in told.items():
        text = str(what)
        assert not RUN_SECRET.search(text), where
        assert "PRIVATE KEY" not in text, where
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in text.split(), where
        assert "payload of a customer" not in text, where
