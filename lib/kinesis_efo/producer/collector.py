"""Turns a producer's metrics into samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kinesis_efo.metrics import Labels, Sample, Source
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.metrics.labels import MOST_ERRORS, OTHER
from kinesis_efo.producer.metrics import ProducerMetrics


def producer_collector(stream: str, snapshot: Callable[[], ProducerMetrics]) -> Source:
    """A source of the samples of one producer.

    Args:
        stream: Name or ARN; the name becomes the attribute `stream`.
        snapshot: Returns the producer's metrics; called from any thread.
    """
    errors = Labels(MOST_ERRORS)
    about = (("stream", stream.rpartition("/")[2]),)

    def read() -> Iterator[Sample]:
        now = snapshot()
        yield Sample(metrics.WRITTEN, now.records_written, about)
        yield Sample(metrics.WRITTEN_BYTES, now.bytes_written, about)
        yield Sample(metrics.REQUESTS, now.requests, about)
        yield Sample(metrics.REFUSED, now.records_refused, about)
        yield Sample(metrics.OUTSTANDING, now.outstanding_records, about)
        yield Sample(metrics.OUTSTANDING_BYTES, now.outstanding_bytes, about)
        yield Sample(metrics.PUT_WAITS, now.backpressure_seconds, about)
        yield Sample(metrics.LATENCY, now.latency_p99, about)
        for code, count in now.retries.items():
            yield Sample(metrics.RETRIES, count, (*about, ("error", errors.label(code) or OTHER)))

    return read
