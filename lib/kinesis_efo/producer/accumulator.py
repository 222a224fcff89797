"""Holds the records of a producer, decides what to send when, and processes responses. No I/O: times are passed in.

Records wait in one queue per shard. A request takes records from several queues; records that Kinesis refuses return to the front of
their queue. A record leaves the accumulator only if it is acknowledged or refused for good, never because of its age.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import msgspec

from kinesis_efo.aws_errors import THROUGHPUT_EXCEEDED
from kinesis_efo.errors import RecordRefusedError, RetriesExhaustedError, StreamError
from kinesis_efo.producer.aggregation import Parcel
from kinesis_efo.producer.faults import Retry, WriteFault, judge_result
from kinesis_efo.producer.record import Record
from kinesis_efo.producer.routing import ShardMap
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings
from kinesis_efo.producer.shard_queue import Backoff, Outage, PutRecordsRequest, ShardQueue, cut
from kinesis_efo.records.distribution import Distribution

WRONG_SHARD = "WrongShard"
"""The library's own error code for an aggregate that Kinesis wrote to a shard where readers would drop it."""

_MOST_EXPIRED_IN_A_ROW = 5


class Result(msgspec.Struct, gc=False):
    """The result of PutRecords for one parcel: a shard, or an error."""

    shard: str | None = msgspec.field(name="ShardId", default=None)
    code: str | None = msgspec.field(name="ErrorCode", default=None)
    message: str | None = msgspec.field(name="ErrorMessage", default=None)


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of a request.

    `refused` are records that can never be written, `retried` counts the parcels that will be sent again, by error code. `misrouted` is
    whether the response showed that the shard map is out of date. `failure` is the error that ends the producer.
    """

    acknowledged: list[Record] = field(default_factory=list)
    refused: list[tuple[Record, StreamError]] = field(default_factory=list)
    retried: Counter[str] = field(default_factory=Counter)
    misrouted: bool = False
    failure: StreamError | None = None


@dataclass(slots=True)
class _QueueOutcome:
    """The outcome of a request for one queue."""

    taken: int = 0
    throttled: bool = False
    again: list[Record] = field(default_factory=list)
    cause: str = ""


class RecordAccumulator:
    """Holds the records that wait to be sent, and makes requests of them.

    `max_record_bytes` is the maximum size of a record of the stream; aggregates are not larger either.
    """

    def __init__(
        self, stream: str, settings: ProducerSettings, shards: ShardMap, max_record_bytes: int, random: Random
    ) -> None:
        self._stream = stream
        self._settings = settings
        self._random = random
        self._aggregate_bytes = min(settings.aggregate_bytes, max_record_bytes)
        self._map = shards
        self._next_map: ShardMap | None = None
        self._queueing = _queueing(settings, shards)
        self._queues = {shard: ShardQueue(shard, self._queueing, random) for shard in shards.open_shards}
        self._backoff = Backoff(settings, random)
        self._failing: Outage | None = None
        self._expired = 0
        self._most_records = MAX_REQUEST_RECORDS
        self._turn = 0
        self.in_flight = 0

    @property
    def shards(self) -> ShardMap:
        """The newest shard map."""
        return self._next_map or self._map

    def add(self, records: Iterable[Record]) -> None:
        """Add records to their shards' queues."""
        for shard, its_records in self._by_shard(records).items():
            self._queues[shard].records.extend(its_records)

    def adopt(self, shards: ShardMap) -> None:
        """Use a new shard map: immediately, or, with `ordered`, as soon as no request that was made with the old map is in flight."""
        self._next_map = shards
        self._adopt_when_possible()

    def next_request(self, now: float, *, eager: bool) -> PutRecordsRequest | None:
        """Make the next request; None if none is due. `eager` means that a caller waits, so the request need not be full."""
        if self._backoff.until > now or self._next_map is not None:
            return None
        ready = [queue for queue in self._queues.values() if queue.ready(now)]
        if not ready or not (eager or self._worth_sending(ready, now)):
            return None
        self._turn = (self._turn + 1) % len(ready)
        halved = self._most_records < MAX_REQUEST_RECORDS
        aggregate_bytes = self._aggregate_bytes if self._queueing.aggregate and not halved else None
        request = cut(ready[self._turn :] + ready[: self._turn], aggregate_bytes, self._most_records)
        request.sent_at = now
        self.in_flight += 1
        return request

    def due_at(self, *, eager: bool) -> float | None:
        """Return the time to call `next_request` again; None if there is nothing to send before the next response or put."""
        if self._next_map is not None:
            return None
        linger = 0.0 if eager else self._settings.linger
        times = [
            max(queue.records.oldest() + linger, queue.backoff.until)
            for queue in self._queues.values()
            if queue.ready(queue.backoff.until)
        ]
        return max(min(times), self._backoff.until) if times else None

    def settle(self, request: PutRecordsRequest, results: Sequence[Result], now: float) -> RequestOutcome:
        """Process the response to a request: one result for each of its parcels."""
        outcomes = self._ended(request)
        self._failing, self._expired = None, 0
        self._most_records = min(2 * self._most_records, MAX_REQUEST_RECORDS)
        self._backoff.end()
        settled, keyed = RequestOutcome(), request.keyed
        for parcel, shard, result in zip(request.parcels, request.shards, results, strict=True):
            outcome = outcomes[shard]
            if result.code is not None:
                self._refused(parcel, judge_result(result.code, result.message or ""), outcome, settled)
            elif result.shard == shard or not keyed:
                outcome.taken += 1
                settled.acknowledged += parcel.records
            else:
                self._written_elsewhere(parcel, shard, result.shard or shard, outcome, settled)
        for shard, outcome in outcomes.items():
            self._pace(shard, outcome, request.sent_at, now, settled)
        return settled

    def fault(self, request: PutRecordsRequest, fault: WriteFault, now: float) -> RequestOutcome:
        """Process the failure of a whole request. Kinesis may have carried out the request, so a retry may write its records twice."""
        outcomes = self._ended(request)
        settled = RequestOutcome()
        if fault.kind is RecordRefusedError and len(request.records) == 1:
            settled.refused = [(record, _refusal(record, fault)) for record in request.records]
            return settled
        for parcel, shard in zip(request.parcels, request.shards, strict=True):
            outcomes[shard].again += parcel.records
        for shard, outcome in outcomes.items():
            self._give_back(shard, outcome.again)
        if fault.kind is RecordRefusedError:
            # One record makes Kinesis refuse all of them. Halve the next request, until that record is alone and can be named.
            self._most_records = max(1, min(self._most_records, len(request.records)) // 2)
            settled.retried[fault.code] = len(request.parcels)
            return settled
        self._expired = self._expired + 1 if fault.retry is Retry.BRIEFLY else 0
        if fault.retry is Retry.NO or self._expired >= _MOST_EXPIRED_IN_A_ROW:
            settled.failure = self._error(fault)
            return settled
        settled.retried[fault.code] = len(request.parcels)
        self._backoff.extend(request.sent_at, now)
        self._failing = self._failing or Outage(now, fault.text)
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
        # Send less than a full request if the capacity does not hold two, so that one can fill while the other is in flight.
        half = self._settings.max_outstanding_records // 2
        enough = half // 2 if self._queueing.aggregate else min(MAX_REQUEST_RECORDS, half)
        return records >= max(1, enough) or size >= min(MAX_REQUEST_BYTES, self._settings.max_outstanding_bytes // 4)

    def _ended(self, request: PutRecordsRequest) -> dict[str, _QueueOutcome]:
        self.in_flight -= 1
        outcomes = {shard: _QueueOutcome() for shard in dict.fromkeys(request.shards)}
        for shard in outcomes:
            if (queue := self._queues.get(shard)) is not None:
                # A queue that was created after the request did not count the request.
                queue.in_flight = max(0, queue.in_flight - 1)
        self._adopt_when_possible()
        return outcomes

    def _adopt_when_possible(self) -> None:
        if self._next_map is None or (self._settings.ordered and self.in_flight):
            return
        self._map, self._next_map = self._next_map, None
        before, queueing = self._queues, _queueing(self._settings, self._map)
        # Queues are kept unless their type changes, which it does only with `ordered`; then no request is in flight here.
        kept = before if queueing == self._queueing or not self._settings.ordered else {}
        self._queueing = queueing
        self._queues = {
            shard: kept.get(shard) or ShardQueue(shard, queueing, self._random) for shard in self._map.open_shards
        }
        for queue in [queue for shard, queue in before.items() if self._queues.get(shard) is not queue]:
            self.add(queue.records)

    def _give_back(self, shard: str, records: list[Record]) -> None:
        by_shard = {shard: records} if shard in self._queues else self._by_shard(records)
        for target, its_records in by_shard.items():
            self._queues[target].records.give_back(its_records)

    def _by_shard(self, records: Iterable[Record]) -> dict[str, list[Record]]:
        by_shard: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            # A shard's range of hash keys never changes, so a prediction is right as long as the predicted shard is open.
            by_shard[record.shard if record.shard in self._queues else self._map.shard_of(record.hash)].append(record)
        return by_shard

    def _written_elsewhere(
        self, parcel: Parcel, predicted: str, actual: str, outcome: _QueueOutcome, settled: RequestOutcome
    ) -> None:
        shards = self.shards
        settled.misrouted |= actual != predicted and shards.predicts
        if len(parcel.records) > 1 and not all(shards.covers(actual, record.hash) for record in parcel.records):
            # The KCL and strict readers drop an aggregate with records of other shards, so its records count as not written.
            settled.retried[WRONG_SHARD] += 1
            outcome.again += parcel.records
            outcome.cause = outcome.cause or f"{WRONG_SHARD}: an aggregate for {predicted} was written to {actual}"
            return
        outcome.taken += 1
        settled.acknowledged += parcel.records

    def _refused(self, parcel: Parcel, fault: WriteFault, outcome: _QueueOutcome, settled: RequestOutcome) -> None:
        if fault.retry is not Retry.YES:
            if fault.kind is not RecordRefusedError:
                settled.failure = settled.failure or self._error(fault)
                outcome.again += parcel.records
                return
            settled.refused += [(record, _refusal(record, fault)) for record in parcel.records]
            return
        settled.retried[fault.code] += 1
        outcome.cause = outcome.cause or fault.text
        outcome.throttled |= fault.code == THROUGHPUT_EXCEEDED
        outcome.again += parcel.records

    def _pace(self, shard: str, outcome: _QueueOutcome, sent_at: float, now: float, settled: RequestOutcome) -> None:
        self._give_back(shard, outcome.again)
        queue = self._queues.get(shard)
        if queue is None:
            return
        if outcome.taken:
            queue.failing = None
        if outcome.throttled:
            queue.slow_down(outcome.taken, sent_at, now)
        elif outcome.again:
            queue.backoff.extend(sent_at, now, progress=outcome.taken > 0)
        else:
            queue.speed_up(sent_at)
        if outcome.again and not outcome.taken:
            queue.failing = queue.failing or Outage(now, outcome.cause)
            if now - queue.failing.since > self._settings.retry_timeout and settled.failure is None:
                settled.failure = self._given_up(f"every record for {shard}", queue.failing, now)

    def _given_up(self, what: str, failing: Outage, now: float) -> StreamError:
        return RetriesExhaustedError(
            f"stream {self._stream} cannot be written to: {what} failed for {now - failing.since:.0f} s, beginning with "
            f"{failing.cause}. {self._patience_remedy()}"
        )

    def _patience_remedy(self) -> str:
        return f"Remove the cause, or raise the limit (retry_timeout is {self._settings.retry_timeout:g} s)"

    def _error(self, fault: WriteFault) -> StreamError:
        remedy = f". To do: {fault.remedy}" if fault.remedy else ""
        return fault.kind(f"stream {self._stream} cannot be written to: {fault.text}{remedy}")


def _refusal(record: Record, fault: WriteFault) -> RecordRefusedError:
    return RecordRefusedError(f"{record.describe()}: Kinesis refuses it: {fault.text}")


def _queueing(settings: ProducerSettings, shards: ShardMap) -> ProducerSettings:
    """Return the settings for the queues, without `aggregate` and `ordered` if the stream does not allow them.

    AWS does not support aggregates if Kinesis distributes records itself; readers that follow the KCL's rule drop such aggregates.
    """
    aggregate = settings.aggregate and shards.distribution is Distribution.KEYED
    return replace(settings, aggregate=aggregate, ordered=settings.ordered and shards.predicts)
