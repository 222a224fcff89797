"""A producer's metrics, as samples and as EMF lines."""

import asyncio
import json
from pathlib import Path

import pytest

from kinesis_efo.metrics import METRICS, MetricsSettings
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.producer import AsyncProducer, Producer, ProducerMetrics
from kinesis_efo.producer.metrics import producer_collector
from tests.support.producers import Opened, with_parts

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders"


@pytest.mark.parametrize("stream", ["dev-orders", ARN])
def test_snapshot_becomes_samples(stream: str) -> None:
    now = ProducerMetrics(5, 50, 2, 1.5, {"ThrottlingException": 3}, 7, 100, 1000, 1, 0.1, 0.1, 0.4, 0.9)
    found = {
        sample.metric: (sample.value, dict(sample.attributes)) for sample in producer_collector(stream, lambda: now)()
    }
    about = {"stream": "dev-orders"}
    assert found == {
        metrics.WRITTEN: (100, about),
        metrics.WRITTEN_BYTES: (1000, about),
        metrics.REQUESTS: (7, about),
        metrics.REFUSED: (1, about),
        metrics.OUTSTANDING: (5, about),
        metrics.OUTSTANDING_BYTES: (50, about),
        metrics.PUT_WAITS: (1.5, about),
        metrics.LATENCY: (0.4, about),
        metrics.RETRIES: (3, {**about, "error": "ThrottlingException"}),
    }
    assert found.keys() == {metric for metric in METRICS if ".producer." in metric.name}


def test_both_producers_report_until_they_are_closed(tmp_path: Path) -> None:
    settings = MetricsSettings("emf", str(tmp_path / "emf.log"), emf_interval=3600)

    async def write() -> None:
        async with with_parts(AsyncProducer("orders", metrics=settings), connect=Opened()) as producer:
            await producer.put(b"one", "k")

    asyncio.run(write())
    with with_parts(Producer("orders", metrics=settings), connect=Opened()) as blocking:
        blocking.put(b"two", "k")
        blocking.put(b"three", "k")
    lines = [json.loads(line) for line in (tmp_path / "emf.log").read_text().splitlines()]
    assert [(line["Stream"], line["RecordsWritten"], line["RecordsOutstanding"]) for line in lines] == [
        ("orders", 1, 0),
        ("orders", 2, 0),
    ]
