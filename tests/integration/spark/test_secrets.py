"""No secret is told by a query on real Spark: not in its plan, its progress, its checkpoint, its configuration or its failure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.spark.conftest import CREDENTIALS, Queries
from tests.support.world import World, wait_for_rows, wait_until

pytestmark = pytest.mark.spark

RUN_SECRET = re.compile(r"(?<![\w-])[\w-]{43}(?![\w-])")
"""What a secret of a run looks like: it lives in processes that Spark started, so it is recognised and not known here."""


def test_the_pattern_knows_a_secret() -> None:
    assert all(RUN_SECRET.search(f"secret={secrets.token_urlsafe(32)},") for _ in range(100))


def test_no_secret_is_told(queries: Queries, world: Callable[..., World]) -> None:
    w = world({"orders": 2})
    w.put((f"k{n % 7}", b"payload of a customer") for n in range(100))
    query = queries.start(queries.load(w), "secretive")
    wait_for_rows(query, 100)
    told: dict[str, Any] = {
        "plan": query._jsq.explainInternal(True),
        "progress": [progress.json for progress in query.recentProgress],
        "status": query.status,
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
    assert "kinesis-efo" in told["plan"] or "orders" in str(told["progress"])
    for where, what in told.items():
        text = str(what)
        assert not RUN_SECRET.search(text), where
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in text.split(), where
        assert "payload of a customer" not in text, where
