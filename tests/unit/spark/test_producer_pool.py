"""Producers that stay open for the next task of a worker: how long, and how many."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from kinesis_efo.errors import StreamNotFoundError
from kinesis_efo.producer import ProducerSettings
from kinesis_efo.spark.sink import KinesisWriter, ProducerPool, SinkOptions
from kinesis_efo_tools.operate.manifest_search import document
from tests.support.shared_runs import manifest

OPTIONS = SinkOptions()


class AsyncProducer:
    metrics = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.aborted = False

    def open(self) -> AsyncProducer:
        return self

    def abort(self) -> None:
        self.aborted = True


def pool(now: list[float] | None = None, **limits: Any) -> ProducerPool:
    return ProducerPool(clock=lambda: 0.0 if now is None else now[0], producer=AsyncProducer, **limits)


def test_an_old_producer_is_replaced() -> None:
    now = [100.0]
    producers = pool(now, seconds=300.0)
    first: Any = producers.acquire("orders", OPTIONS)
    producers.release(first)
    now[0] += 299.0
    assert producers.acquire("orders", OPTIONS) is first
    producers.release(first)
    now[0] += 1.0
    assert producers.acquire("orders", OPTIONS) is not first
    assert first.producer.aborted


def test_the_oldest_producer_makes_room() -> None:
    producers = pool(most=2)
    taken: list[Any] = [producers.acquire(name, OPTIONS) for name in ("a", "b", "c")]
    for each in taken:
        producers.release(each)
    assert [each.producer.aborted for each in taken] == [True, False, False]
    assert producers.acquire("c", OPTIONS) is taken[2]


@pytest.mark.parametrize(("answers", "fail_on_error"), [(3, False), (4, False), (1, True)])
def test_left_out_stream_is_asked_for_several_times(answers: int, fail_on_error: bool) -> None:
    refusals, pauses = [StreamNotFoundError("no such stream")] * answers, list[float]()

    class NotFoundYet(AsyncProducer):
        def open(self) -> AsyncProducer:
            if refusals:
                raise refusals.pop()
            return self

    producers = ProducerPool(producer=NotFoundYet, sleep=pauses.append)
    options = SinkOptions(producer=ProducerSettings(fail_on_error=fail_on_error))
    with nullcontext() if answers == 3 else pytest.raises(StreamNotFoundError):
        producers.acquire("orders", options)
    assert sum(pauses) == (0 if fail_on_error else 10)


def test_a_forked_process_uses_no_inherited_producer() -> None:
    producers = pool()
    kept: Any = producers.acquire("orders", OPTIONS)
    producers.release(kept)
    producers.forget()
    assert producers.acquire("orders", OPTIONS) is not kept
    assert not kept.producer.aborted


def test_sink_names_the_application_in_its_session(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document(manifest("orders"), "leases")))
    writer = KinesisWriter.of({"manifest": str(path)}, StructType([StructField("data", StringType())]), False)
    assert writer.options.aws.role_session_name == "kinesis-efo-lake"
