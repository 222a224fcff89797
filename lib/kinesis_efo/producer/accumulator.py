"""The producer's decisions: what to send next and when, and what an answer means. No I/O: times are passed in.

Records wait in one queue per shard. Requests are cut across queues; what an answer refuses goes back to the front of its
queue. Nothing leaves but as acknowledged, as refused for good, or never: there is no age after which records vanish.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from kinesis_efo.aws_errors import THROUGHPUT_EXCEEDED
from kinesis_efo.errors import RecordRefusedError, RetriesExhaustedError, StreamError
from kinesis_efo.producer.faults import Retry, WriteFault, judge_result
from kinesis_efo.producer.record import Parcel, Record
from kinesis_efo.producer.request import Request, cut
from kinesis_efo.producer.routing import ShardMap
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings
from kinesis_efo.producer.shard_queue import Backoff, Failing, ShardQueue

WRONG_SHARD = "WrongShard"
"""Our own code: an aggregate fell into a shard that readers would not take all its records from."""

_EXPIRED_IN_A_ROW = 5


class Result(Protocol):
    """The answer for one parcel: a shard, or an error."""

    @property
    def shard(self) -> str | None: ...
    @property
    def code(self) -> str | None: ...
    @property
    def message(self) -> str | None: ...


@dataclass(slots=True)
class Settled:
    """What became of a request.

    Attributes:
        acknowledged: Kinesis has them.
        refused: They can never be written.
        retried: Parcels that will be sent again, by error code.
        misrouted: The shard map is old.
        failure: The producer cannot go on.
    """

    acknowledged: list[Record] = field(default_factory=list)
    refused: list[tuple[Record, StreamError]] = field(default_factory=list)
    retried: Counter[str] = field(default_factory=Counter)
    misrouted: bool = False
    failure: StreamError | None = None


@dataclass(slots=True)
class _QueueNews:
    """What one answer says about one queue."""

    taken: int = 0
    throttled: bool = False
    again: list[Record] = field(default_factory=list)
    cause: str = ""


class RecordAccumulator:
    """Records that were put and are not acknowledged.

    Args:
        stream: Name or ARN, for messages.
        settings: How to behave.
        shards: The shard map.
        max_record_bytes: The stream's largest record, for aggregates.
        random: For jitter.
    """

    def __init__(
        self, stream: str, settings: ProducerSettings, shards: ShardMap, max_record_bytes: int, random: Random
    ) -> None:
        self._stream = stream
        self._settings = settings
        self._random = random
        self._aggregate_bytes = min(settings.aggregate_bytes, max_record_bytes) if settings.aggregate else None
        self._map = shards
        self._next_map: ShardMap | None = None
        self._queues = {shard: ShardQueue(shard, settings, random) for shard in shards.open_shards}
        self._backoff = Backoff(settings, random)
        self._failing: Failing | None = None
        self._expired = 0
        self._turn = 0
        self.in_flight = 0

    @property
    def shards(self) -> ShardMap:
        """The newest shard map."""
        return self._next_map or self._map

    @property
    def pending(self) -> int:
        """Records that wait to be sent."""
        return sum(len(queue.records) for queue in self._queues.values())

    def add(self, records: Iterable[Record]) -> None:
        """Take records to be sent."""
        by_shard: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            # A shard's place on the ring never changes: where it is still open, the prediction holds.
            shard = record.shard if record.shard in self._queues else self._map.shard_of(record.hash)
            by_shard[shard].append(record)
        for shard, its_records in by_shard.items():
            self._queues[shard].records.extend(its_records)

    def adopt(self, shards: ShardMap) -> None:
        """Route by another shard map. With order kept, once nothing is in flight: the old map's answers come first."""
        self._next_map = shards
        self._adopt_when_quiet()

    def next_request(self, now: float, *, eager: bool) -> Request | None:
        """The next request to send now, if any.

        Args:
            now: Monotonic seconds.
            eager: Somebody waits: do not linger for a full request.
        """
        if self._backoff.until > now or self._next_map is not None:
            return None
        ready = [queue for queue in self._queues.values() if queue.ready(now)]
        if not ready or not (eager or self._worth_sending(ready, now)):
            return None
        self._turn = (self._turn + 1) % len(ready)
        request = cut(ready[self._turn :] + ready[: self._turn], self._aggregate_bytes)
        request.sent_at = now
        self.in_flight += 1
        return request

    def due_at(self, *, eager: bool) -> float | None:
        """When `next_request` should be asked again though nothing happens; None where only an answer or a put helps."""
        if self._next_map is not None:
            return None
        linger = 0.0 if eager else self._settings.linger
        times = [
            max(queue.records.oldest() + linger, queue.backoff.until)
            for queue in self._queues.values()
            if queue.ready(queue.backoff.until)
        ]
        return max(min(times), self._backoff.until) if times else None

    def settle(self, request: Request, results: Sequence[Result], now: float) -> Settled:
        """Take in the answer to a request: one result for each of its parcels."""
        news = self._land(request)
        self._failing, self._expired = None, 0
        self._backoff.end()
        settled = Settled()
        if [None if result.code else result.shard for result in results] == request.shards:
            # The way of most answers: all taken, and where it was foretold.
            settled.acknowledged = request.records
            for shard, taken in Counter(request.shards).items():
                news[shard].taken = taken
        else:
            self._sort_out(request, results, news, settled, now)
        for shard, queue_news in news.items():
            self._pace(shard, queue_news, request.sent_at, now, settled)
        return settled

    def fault(self, request: Request, fault: WriteFault, now: float) -> Settled:
        """Take in that a request failed as a whole. It may have been carried out: sent again, it may write twice."""
        news = self._land(request)
        settled = Settled()
        for parcel, shard in zip(request.parcels, request.shards, strict=True):
            news[shard].again += parcel.records
        for shard, queue_news in news.items():
            self._give_back(shard, queue_news.again)
        self._expired = self._expired + 1 if fault.retry is Retry.BRIEFLY else 0
        if fault.retry is Retry.NO or self._expired >= _EXPIRED_IN_A_ROW:
            settled.failure = self._fatal(fault, request)
            return settled
        settled.retried[fault.code] = len(request.parcels)
        self._backoff.extend(request.sent_at, now)
        self._failing = self._failing or Failing(now, fault.text)
        if now - self._failing.since > self._settings.retry_timeout:
            settled.failure = self._given_up("every request", self._failing, now)
        return settled

    # -- parts

    def _worth_sending(self, ready: list[ShardQueue], now: float) -> bool:
        records = size = 0
        for queue in ready:
            records += len(queue.records)
            size += queue.records.bytes
            if queue.records.oldest() + self._settings.linger <= now:
                return True
        # Less than a full request where the capacity is not enough for two: one is filled while the other is under way.
        half = self._settings.max_outstanding_records // 2
        enough = half // 2 if self._settings.aggregate else min(MAX_REQUEST_RECORDS, half)
        return records >= max(1, enough) or size >= min(MAX_REQUEST_BYTES, self._settings.max_outstanding_bytes // 4)

    def _land(self, request: Request) -> dict[str, _QueueNews]:
        self.in_flight -= 1
        news = {shard: _QueueNews() for shard in dict.fromkeys(request.shards)}
        for shard in news:
            if shard in self._queues:
                self._queues[shard].in_flight -= 1
        self._adopt_when_quiet()
        return news

    def _adopt_when_quiet(self) -> None:
        if self._next_map is None or (self._settings.ordered and self.in_flight):
            return
        self._map, self._next_map = self._next_map, None
        closed = [queue for shard, queue in self._queues.items() if shard not in self._map.open_shards]
        self._queues = {
            shard: self._queues.get(shard) or ShardQueue(shard, self._settings, self._random)
            for shard in self._map.open_shards
        }
        for queue in closed:
            self.add(queue.records)

    def _give_back(self, shard: str, records: list[Record]) -> None:
        queue = self._queues.get(shard)
        if queue is not None:
            queue.records.give_back(records)
            return
        by_shard: dict[str, list[Record]] = {}
        for record in records:
            by_shard.setdefault(self._map.shard_of(record.hash), []).append(record)
        for target, its_records in by_shard.items():
            self._queues[target].records.give_back(its_records)

    def _sort_out(
        self, request: Request, results: Sequence[Result], news: dict[str, _QueueNews], settled: Settled, now: float
    ) -> None:
        for parcel, shard, result in zip(request.parcels, request.shards, results, strict=True):
            queue_news = news[shard]
            if result.code is None and result.shard == shard:
                queue_news.taken += 1
                settled.acknowledged += parcel.records
            elif result.code is None:
                self._taken_elsewhere(parcel, shard, result.shard or shard, queue_news, settled)
            else:
                self._refused(parcel, judge_result(result.code, result.message or ""), queue_news, settled, now)

    def _taken_elsewhere(self, parcel: Parcel, predicted: str, actual: str, news: _QueueNews, settled: Settled) -> None:
        settled.misrouted |= actual != predicted
        shards = self.shards
        if len(parcel.records) > 1 and not all(shards.covers(actual, record.hash) for record in parcel.records):
            # KCL and our reader drop an aggregate that holds a record of another shard: not written, then.
            settled.retried[WRONG_SHARD] += 1
            news.again += parcel.records
            news.cause = news.cause or f"{WRONG_SHARD}: an aggregate for {predicted} fell into {actual}"
            return
        news.taken += 1
        settled.acknowledged += parcel.records

    def _refused(self, parcel: Parcel, fault: WriteFault, news: _QueueNews, settled: Settled, now: float) -> None:
        if fault.retry is not Retry.YES:
            if fault.kind is not RecordRefusedError:
                settled.failure = settled.failure or self._error(fault)
                news.again += parcel.records
                return
            settled.refused += [
                (record, RecordRefusedError(f"{record.describe()}: Kinesis refuses it: {fault.text}"))
                for record in parcel.records
            ]
            return
        settled.retried[fault.code] += 1
        news.cause = news.cause or fault.text
        if fault.code == THROUGHPUT_EXCEEDED:
            news.throttled = True
            news.again += parcel.records
            return
        for record in parcel.records:
            record.faulted_at = now if record.faulted_at is None else record.faulted_at
            if now - record.faulted_at > self._settings.retry_timeout:
                waited = f"{now - record.faulted_at:.0f} s"
                error = RetriesExhaustedError(
                    f"{record.describe()} cannot be written: refused for {waited}, last with {fault.text}"
                )
                settled.refused.append((record, error))
            else:
                news.again.append(record)

    def _pace(self, shard: str, news: _QueueNews, sent_at: float, now: float, settled: Settled) -> None:
        self._give_back(shard, news.again)
        queue = self._queues.get(shard)
        if queue is None:
            return
        if news.taken:
            queue.failing = None
        if news.throttled:
            queue.slow_down(news.taken, sent_at, now)
        elif news.again:
            queue.backoff.extend(sent_at, now, progress=news.taken > 0)
        else:
            queue.speed_up(sent_at)
        if news.again and not news.taken:
            queue.failing = queue.failing or Failing(now, news.cause)
            if now - queue.failing.since > self._settings.retry_timeout and settled.failure is None:
                settled.failure = self._given_up(f"every record for {shard}", queue.failing, now)

    def _given_up(self, what: str, failing: Failing, now: float) -> StreamError:
        return RetriesExhaustedError(
            f"stream {self._stream} cannot be written to: {what} failed for {now - failing.since:.0f} s (retry_timeout is "
            f"{self._settings.retry_timeout:g} s), beginning with {failing.cause}"
        )

    def _fatal(self, fault: WriteFault, request: Request) -> StreamError:
        if fault.kind is not RecordRefusedError:
            return self._error(fault)
        largest = max(request.records, key=lambda record: record.size)
        return RecordRefusedError(
            f"stream {self._stream} refuses a request of {len(request.records)} records, the largest of them {largest.describe()}: {fault.text}"
        )

    def _error(self, fault: WriteFault) -> StreamError:
        remedy = f". To do: {fault.remedy}" if fault.remedy else ""
        return fault.kind(f"stream {self._stream} cannot be written to: {fault.text}{remedy}")
