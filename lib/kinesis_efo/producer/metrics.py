"""A producer's metrics (counters, gauges and a latency histogram), and a warning when writing stalls."""

from __future__ import annotations

import asyncio
import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kinesis_efo.clock import Clock
from kinesis_efo.metrics import Labels, Sample, Source
from kinesis_efo.metrics import catalog as metrics
from kinesis_efo.metrics.labels import MOST_ERRORS, OTHER

logger = logging.getLogger(__name__)

_BOUNDS = [math.sqrt(1 << power) / 1000 for power in range(39)]
"""Upper bounds of the latency histogram's buckets, in seconds. One more bucket, the last, has no upper bound."""


class Latency:
    """A histogram of the times from `put` to acknowledgement. The buckets' upper bounds grow by a factor of the square root of two."""

    __slots__ = ("_counts", "count", "longest", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self.count = 0
        self.total = 0.0
        self.longest = 0.0

    def add(self, seconds: Sequence[float]) -> None:
        """Add the latencies of acknowledged records, in seconds."""
        for each in seconds:
            self._counts[bisect_left(_BOUNDS, each)] += 1
        self.count += len(seconds)
        self.total += sum(seconds)
        self.longest = max(self.longest, max(seconds, default=0.0))

    def quantile(self, share: float) -> float:
        """Return the seconds within which a share (0 to 1) of the records was acknowledged; 0.0 if there are no records."""
        wanted = share * self.count
        seen = 0
        for power, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(self.longest, _BOUNDS[power]) if power < len(_BOUNDS) else self.longest
        return self.longest


@dataclass(frozen=True, slots=True)
class ProducerMetrics:
    """A snapshot of a producer's metrics. Bytes are data and partition keys, as Kinesis counts them; times are seconds.

    Attributes:
        outstanding_records: Records put and not acknowledged yet.
        outstanding_bytes: Size of outstanding records.
        backpressure_waits: Number of puts that had to wait for capacity.
        backpressure_seconds: Total time that puts have waited.
        retries: Number of Kinesis records sent again, by error code.
        requests: Number of PutRecords calls.
        records_written: Acknowledged records; the records of an aggregate count one by one.
        bytes_written: Size of acknowledged records.
        records_refused: Records skipped because they can never be written; only if `fail_on_error` is off.
        latency_mean: Mean time from put to acknowledgement.
        latency_p50: Median time from put to acknowledgement; like `latency_p99`, overestimated by a factor of up to 1.5.
        latency_p99: 99th percentile of the time from put to acknowledgement.
        latency_max: Maximum time from put to acknowledgement.
    """

    outstanding_records: int = 0
    outstanding_bytes: int = 0
    backpressure_waits: int = 0
    backpressure_seconds: float = 0.0
    retries: Mapping[str, int] = field(default_factory=dict)
    requests: int = 0
    records_written: int = 0
    bytes_written: int = 0
    records_refused: int = 0
    latency_mean: float = 0.0
    latency_p50: float = 0.0
    latency_p99: float = 0.0
    latency_max: float = 0.0


class Counts:
    """The counters of a producer, from which `ProducerMetrics` are created."""

    def __init__(self) -> None:
        self.retries: Counter[str] = Counter()
        self.requests = 0
        self.records_written = 0
        self.bytes_written = 0
        self.records_refused = 0
        self.waits = 0
        self.seconds_waited = 0.0
        self.latency = Latency()

    def snapshot(self, records: int, size: int, seconds_waiting: float) -> ProducerMetrics:
        """Return a snapshot, given the number of outstanding records, their bytes, and the total seconds that current puts have waited."""
        latency = self.latency
        return ProducerMetrics(
            records,
            size,
            self.waits,
            self.seconds_waited + seconds_waiting,
            dict(self.retries),
            self.requests,
            self.records_written,
            self.bytes_written,
            self.records_refused,
            latency.total / latency.count if latency.count else 0.0,
            latency.quantile(0.5),
            latency.quantile(0.99),
            latency.longest,
        )


def producer_collector(stream: str, snapshot: Callable[[], ProducerMetrics]) -> Source:
    """Return a metric source for one producer. Its samples are labeled with the name of `stream`. `snapshot` must be thread-safe."""
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


class StallWatch:
    """Logs one warning per stall: Kinesis has not acknowledged any record for `seconds` although a caller is waiting.

    `describe` returns the producer's state for the message, or None if no caller is waiting.
    """

    def __init__(self, seconds: float, clock: Clock, describe: Callable[[], str | None]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._describe = describe
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._warned = False
        self.fault = ""

    def start(self) -> None:
        """Start the timer, unless it is running. Called while callers are waiting."""
        if self._timer is None:
            self._since = self._clock.monotonic()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check)

    def progress(self) -> None:
        """Record that Kinesis has acknowledged records, which ends any stall."""
        now = self._clock.monotonic()
        if self._warned:
            logger.warning("writing continues after %.0f s", now - self._since)
        self._since, self._warned, self.fault = now, False, ""

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        state = self._describe()
        if state is None:
            return
        waited = self._clock.monotonic() - self._since
        if waited >= self._seconds and not self._warned:
            self._warned = True
            cause = f"; the last error was {self.fault}" if self.fault else "; Kinesis has not answered"
            logger.warning("%s and none was acknowledged for %.0f s%s", state, waited, cause)
        rest = self._seconds - waited if waited < self._seconds else self._seconds
        # Wait at least 0.01 s, so that a timer that fires a moment too early does not cause a busy loop.
        self._timer = asyncio.get_running_loop().call_later(max(rest, 0.01), self._check)
