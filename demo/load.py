"""Puts the events with the library's producer, at a steady rate, in a thread."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from demo.events import STREAMS, timeline
from demo.ledger import Tally
from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import BlockingProducer


class Loader:
    """Puts events until all are acknowledged. A context manager; leaving it ends the thread.

    Args:
        names: Names of the streams in Kinesis, by logical name.
        url: Endpoint of Kinesis.
        region: Region of the streams.
        events: Number of events to put; None for all.
        rate: Events per second.

    Attributes:
        tallies: The events that the producer was given, by stream. Complete when `done`.
        handed: Number of these events, by stream.
        error: The error that ended the thread, or None.
        done: Whether all events are acknowledged.
    """

    def __init__(self, names: Mapping[str, str], url: str, region: str, events: int | None, rate: float) -> None:
        self._names = names
        self._aws = AwsSettings(region=region, endpoint_url=url)
        self._events = events
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._progress: list[Callable[[], tuple[int, int]]] = []
        self.tallies = {stream: Tally() for stream in STREAMS}
        self.handed: Counter[str] = Counter()
        self.error: Exception | None = None
        self.done = False

    @property
    def written(self) -> tuple[int, int]:
        """Number of events and bytes that Kinesis has acknowledged."""
        counts = [progress() for progress in self._progress]
        return sum(events for events, _ in counts), sum(size for _, size in counts)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                producers = {
                    stream: stack.enter_context(BlockingProducer(self._names[stream], aws=self._aws))
                    for stream in STREAMS
                }
                self._progress = [_progress(producer) for producer in producers.values()]
                self._put(producers)
            # The producers waited for every acknowledgement when they were closed.
            self.done = not self._stop.is_set()
        except Exception as error:
            self.error = error

    def _put(self, producers: Mapping[str, BlockingProducer]) -> None:
        began = time.monotonic()
        for number, event in enumerate(timeline(self._events)):
            ahead = number / self._rate - (time.monotonic() - began)
            if ahead > 0.02 and self._stop.wait(ahead):
                return
            producers[event.stream].put(event.payload, event.key)
            self.tallies[event.stream].add(event.id, event.key, event.payload)
            self.handed[event.stream] += 1


def _progress(producer: BlockingProducer) -> Callable[[], tuple[int, int]]:
    def now() -> tuple[int, int]:
        metrics = producer.metrics
        return metrics.records_written, metrics.bytes_written

    return now
