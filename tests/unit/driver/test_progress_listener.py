"""What a listener gets of a micro-batch from the JVM, and by how many calls."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent

from kinesis_efo.driver import listener as module
from kinesis_efo.driver.listener import ProgressListener, _FromJvm, offset_json

pytestmark = pytest.mark.spark

END = {"streams": {"orders": {"shardId-000000000000": "AFTER:7"}}}
RATES = {"inputRowsPerSecond": 1000.0, "processedRowsPerSecond": 1041.6}


def source(end: object) -> dict[str, object]:
    return {
        "description": "a source", "startOffset": None, "endOffset": end, "latestOffset": None, "numInputRows": 0, **RATES
    }  # fmt: skip


PROGRESS = {
    "id": "33333333-3333-4333-8333-333333333333",
    "runId": "44444444-4444-4444-8444-444444444444",
    "name": "archive",
    "timestamp": "2026-11-24T01:00:00.000Z",
    "batchId": 12,
    "batchDuration": 48,
    "numInputRows": 50,
    **RATES,
    "durationMs": {"addBatch": 31, "triggerExecution": 48},
    "stateOperators": [],
    "sources": [source(END), source(7), source("seven")],
    "sink": {"description": "noop", "numOutputRows": 50},
}


class Event:
    """As the JVM's. It counts how often it is asked for something, and knows nothing but JSON."""

    asked = 0

    def progress(self) -> Event:
        self.asked += 1
        return self

    def json(self) -> str:
        self.asked += 1
        return json.dumps(PROGRESS)


class Heard(ProgressListener):
    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.ended: list[Any] = []

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.progress.append(event.progress)

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.append(event)


def test_the_jvm_is_asked_twice_per_micro_batch() -> None:
    listener, event = Heard(), Event()
    bridge = _FromJvm(listener)
    for call in (bridge.onQueryStarted, bridge.onQueryIdle, bridge.onQueryProgress):
        call(event)
    (progress,) = listener.progress
    assert (progress.name, progress.batchId, progress.batchDuration, progress.numInputRows) == ("archive", 12, 48, 50)
    assert [source.endOffset for source in progress.sources] == [json.dumps(END), "7", "seven"]
    assert event.asked == 2
    listener.hears_progress = False
    bridge.onQueryProgress(event)
    assert (len(listener.progress), event.asked) == (1, 2)


@pytest.mark.parametrize("offset", ["", "7", '{"a": 1}', "{'a': ", "{'a': b}", "{'a': {1, 2}}", None])
def test_other_offsets_keep_their_text(offset: str | None) -> None:
    assert offset_json(offset) == (offset or "")


def test_the_jvm_gets_one_bridge_for_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    jvm = SimpleNamespace(PythonStreamingQueryListenerWrapper=lambda bridge: made.append(bridge) or SimpleNamespace())
    monkeypatch.setattr(module, "SparkContext", SimpleNamespace(_jvm=jvm))
    monkeypatch.setattr(module, "QueryTerminatedEvent", SimpleNamespace(fromJObject=lambda event: ("ended", event)))
    listener = Heard()
    assert listener._jlistener is listener._jlistener
    (bridge,) = made
    bridge.onQueryTerminated("event")
    assert listener.ended == [("ended", "event")]
