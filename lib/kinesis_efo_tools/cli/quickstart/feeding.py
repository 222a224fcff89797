"""Puts records into streams with the library's producer, at a steady rate, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

from kinesis_efo.options import AwsSettings
from kinesis_efo.producer import Producer

_AHEAD: Final = 0.02
"""The thread sleeps only if it is more than this many seconds ahead of the requested rate."""


class Feeder:
    """Context manager that puts records into streams in a thread, until the context is left or there are no more records.

    Args:
        records: The records to put: stream, data and partition key of each.
        rate: Records per second.

    `error` is the error that ended the thread, else None. `done` is whether Kinesis has acknowledged all records.
    """

    def __init__(self, records: Iterable[tuple[str, bytes, str]], aws: AwsSettings, rate: float) -> None:
        self._records, self._aws, self._rate = records, aws, rate
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._producers: dict[str, Producer] = {}
        self.error: Exception | None = None
        self.done = False

    @property
    def written(self) -> int:
        """Number of records that Kinesis has acknowledged."""
        return sum(producer.metrics.records_written for producer in list(self._producers.values()))

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
            with ExitStack() as opened:
                began = time.monotonic()
                for number, (stream, data, key) in enumerate(self._records):
                    ahead = number / self._rate - (time.monotonic() - began)
                    if self._end.wait(ahead) if ahead > _AHEAD else self._end.is_set():
                        return
                    if stream not in self._producers:
                        self._producers[stream] = opened.enter_context(Producer(stream, aws=self._aws))
                    self._producers[stream].put(data, key)
            # The producers were closed together with `opened`; closing waits until all records are acknowledged.
            self.done = True
        except Exception as error:
            self.error = error
