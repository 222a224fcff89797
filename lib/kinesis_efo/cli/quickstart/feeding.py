"""Puts flights into the stream with the library's producer, at a steady rate, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import msgspec

from kinesis_efo.cli.quickstart.flights import Flight
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import BlockingProducer

_STEP: Final = 0.1
"""Seconds between two handfuls."""


class Feeder:
    """Puts flights until it is left. A context manager.

    Args:
        stream: ARN of the stream.
        aws: How to reach it.
        flights: What to put.
        rate: How many a second.

    Attributes:
        error: What ended it before its time, if anything.
    """

    def __init__(self, stream: str, aws: AwsSettings, flights: Iterator[Flight], rate: int) -> None:
        self._producer = BlockingProducer(stream, aws=aws)
        self._flights = flights
        self._each_time = max(1, round(rate * _STEP))
        self._pause = self._each_time / rate
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self.error: Exception | None = None

    @property
    def records(self) -> int:
        """Number of records that Kinesis has acknowledged."""
        return self._producer.metrics.records_written

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            with self._producer as producer:
                while not self._end.wait(self._pause):
                    for _ in range(self._each_time):
                        flight = next(self._flights)
                        producer.put(msgspec.json.encode(flight), flight.aircraft)
        except Exception as error:
            self.error = error
