"""What Spark's listener thread hears of a micro-batch, and by how many calls."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.sql.streaming.listener import QueryProgressEvent

from kinesis_efo.driver import listener as module
from kinesis_efo.driver.listener import (
    FinishedListener,
    ProgressListener,
    _FromJvm,
    kinesis_progress,
    listen,
    offset_json,
)
from kinesis_efo.positions import ShardKey
from kinesis_efo.processes import Process, notes_directory

pytestmark = pytest.mark.spark

END = {"streams": {"orders": {"shardId-000000000000": "AFTER:7"}}}
PROGRESS = {
    "id": "33333333-3333-4333-8333-333333333333",
    "runId": "44444444-4444-4444-8444-444444444444",
    "name": "archive",
    "timestamp": "2026-11-24T01:00:00.000Z",
    "batchId": 12,
    "batchDuration": 48,
    "numInputRows": 50,
    "inputRowsPerSecond": 1000.0,
    "processedRowsPerSecond": 1041.6,
    "durationMs": {"addBatch": 31, "triggerExecution": 48},
    "stateOperators": [],
    "sources": [
        {
            "description": "kinesis-efo",
            "startOffset": None,
            "endOffset": END,
            "latestOffset": None,
            "numInputRows": 50,
            "inputRowsPerSecond": 1000.0,
            "processedRowsPerSecond": 1041.6,
        },
        {
            "description": "rate",
            "startOffset": 6,
            "endOffset": 7,
            "latestOffset": 7,
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
        },
        {
            "description": "a source whose offsets are no JSON",
            "startOffset": "six",
            "endOffset": "seven",
            "latestOffset": None,
            "numInputRows": 0,
            "inputRowsPerSecond": 0.0,
            "processedRowsPerSecond": 0.0,
        },
    ],
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


class Hears(ProgressListener):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.heard.append(event.progress)


def test_the_jvm_is_asked_twice_for_each_micro_batch() -> None:
    listener, event = Hears(), Event()
    _FromJvm(listener).onQueryProgress(event)
    (progress,) = listener.heard
    assert (progress.name, progress.batchId, progress.batchDuration, progress.numInputRows) == ("archive", 12, 48, 50)
    assert [source.endOffset for source in progress.sources] == [json.dumps(END), "7", "seven"]
    assert event.asked == 2


def test_it_hears_of_nothing_else() -> None:
    listener = Hears()
    bridge = _FromJvm(listener)
    for call in (bridge.onQueryStarted, bridge.onQueryIdle):
        call(Event())
    listener.hears_progress = False
    event = Event()
    bridge.onQueryProgress(event)
    assert listener.heard == []
    assert event.asked == 0


@pytest.mark.parametrize("offset", ["", "7", '{"a": 1}', "{'a': ", "{'a': b}", "{'a': {1, 2}}"])
def test_text_that_is_not_pythons_notation_stays_as_it_is(offset: str) -> None:
    assert offset_json(offset) == offset


def test_no_offset_is_no_text() -> None:
    assert offset_json(None) == ""


def test_the_jvm_gets_one_bridge_for_a_listener_and_says_by_it_that_a_query_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    jvm = SimpleNamespace(PythonStreamingQueryListenerWrapper=lambda bridge: made.append(bridge) or SimpleNamespace())
    monkeypatch.setattr(module, "SparkContext", SimpleNamespace(_jvm=jvm))
    monkeypatch.setattr(module, "QueryTerminatedEvent", SimpleNamespace(fromJObject=lambda event: ("ended", event)))
    listener = Hears()
    ended: list[Any] = []
    listener.onQueryTerminated = ended.append  # type: ignore[method-assign]
    assert listener._jlistener is listener._jlistener
    (bridge,) = made
    bridge.onQueryTerminated("event")
    assert ended == [("ended", "event")]


class Session:
    """A classic session, as far as `listen` asks it."""

    def __init__(self, pid: object) -> None:
        self.heard: list[Any] = []
        current = SimpleNamespace(current=lambda: SimpleNamespace(pid=lambda: self.pid()))
        java = SimpleNamespace(lang=SimpleNamespace(ProcessHandle=current))
        self.sparkContext = SimpleNamespace(_jvm=SimpleNamespace(java=java))
        self.streams = SimpleNamespace(addListener=self.heard.append)
        self.pid: Any = pid


def test_a_classic_session_is_listened_to_once_and_a_client_of_spark_connect_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SparkSession", Session)

    def refused() -> int:
        raise Py4JError("no such method")

    session: Any = Session(refused)
    assert not listen(session)
    assert session.heard == []
    session.pid = os.getpid
    assert listen(session)
    assert listen(session)
    (heard,) = session.heard
    assert isinstance(heard, FinishedListener)
    assert (heard._directory, heard._jvm) == (notes_directory(), Process.of(os.getpid()))
    client: Any = object()
    monkeypatch.setattr(module, "_listened", {session})  # such a session has no weak references
    assert listen(client) is False


def test_listener_adds_the_micro_batch_to_the_lag() -> None:
    shard = "shardId-000000000000"
    source = SimpleNamespace(
        endOffset=json.dumps({"version": 1, "streams": {"orders": {shard: "AFTER:7"}}}),
        latestOffset=json.dumps({"millisBehindLatest": {"orders": {shard: 0}}}),
        numInputRows=1,
    )
    progress = SimpleNamespace(sources=[source], name="archive", id="1", batchId=3, batchDuration=14_800)
    (found,) = kinesis_progress(progress)
    assert found.millis_behind == {ShardKey("orders", shard): 14_800}
