"""Producers that stay open for the next task of a worker: how long, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from kinesis_efo.spark import sink
from kinesis_efo.spark.sink import ProducerPool, SinkOptions

OPTIONS = SinkOptions()


class Producer:
    metrics = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.aborted = False

    def open(self) -> Producer:
        return self

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(sink, "BlockingProducer", Producer)
    monkeypatch.setattr(sink.time, "monotonic", lambda: clock[0])
    return clock


def test_an_old_producer_is_replaced(now: list[float]) -> None:
    pool = ProducerPool(seconds=300.0)
    first: Any = pool.take("orders", OPTIONS)
    pool.keep(first)
    now[0] += 299.0
    assert pool.take("orders", OPTIONS) is first
    pool.keep(first)
    now[0] += 1.0
    assert pool.take("orders", OPTIONS) is not first
    assert first.producer.aborted


def test_the_oldest_producer_makes_room() -> None:
    pool = ProducerPool(most=2)
    taken: list[Any] = [pool.take(name, OPTIONS) for name in ("a", "b", "c")]
    for each in taken:
        pool.keep(each)
    assert [each.producer.aborted for each in taken] == [True, False, False]
    assert pool.take("c", OPTIONS) is taken[2]


def test_a_forked_process_uses_no_inherited_producer() -> None:
    pool = ProducerPool()
    kept: Any = pool.take("orders", OPTIONS)
    pool.keep(kept)
    pool.forget()
    assert pool.take("orders", OPTIONS) is not kept
    assert not kept.producer.aborted
