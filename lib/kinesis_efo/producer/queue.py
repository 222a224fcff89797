"""Queues a producer's records, decides which records to send when, and processes responses. No I/O and no clock: times are passed in.

Each shard has a lane, in which its records wait. A request has records from several lanes; records that Kinesis rejects return to the front
of their lane. A record leaves the queue when it is acknowledged or can never be written, never because of its age. After a failure, only
affected lanes back off: without lanes, each request would fill up with rejected records of a throttled shard.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from random import Random

import msgspec

from kinesis_efo.aws_errors import THROUGHPUT_EXCEEDED
from kinesis_efo.errors import RecordRefusedError, RetriesExhaustedError, StreamError
from kinesis_efo.producer.aggregation import Packer, Parcel
from kinesis_efo.producer.faults import Retry, WriteFault, judge_result
from kinesis_efo.producer.record import Record
from kinesis_efo.producer.routing import ShardMap
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings
from kinesis_efo.records.distribution import Distribution

WRONG_SHARD = "WrongShard"
"""This library's error code for an aggregate that Kinesis wrote to a shard where readers drop it."""
STUCK_SECONDS = 60.0
"""Warn about a record that Kinesis has rejected for this many seconds although its shard accepts others. At most one warning per period."""

_MOST_EXPIRED_IN_A_ROW = 5


class Result(msgspec.Struct, gc=False):
    """The result of PutRecords for one parcel (a record or an aggregate): a shard, or an error."""

    shard: str | None = msgspec.field(name="ShardId", default=None)
    code: str | None = msgspec.field(name="ErrorCode", default=None)
    message: str | None = msgspec.field(name="ErrorMessage", default=None)
    sequence_number: str | None = msgspec.field(name="SequenceNumber", default=None)


class Backoff:
    """Backoff with full jitter: a random wait between 0 and a bound that doubles with each consecutive failure."""

    def __init__(self, settings: ProducerSettings, random: Random) -> None:
        self._base, self._max = settings.backoff_base, settings.backoff_max
        self._random = random
        # The times of the last failure that increased the backoff (see `counts`), and of the last failure of any kind
        self._counted = self._last = 0.0
        self.faults = 0
        self.until = 0.0

    def extend(self, sent_at: float, now: float, *, progress: bool = False) -> None:
        """Begin or extend the backoff after a request failed. If part of the request succeeded (`progress`), restart from the first bound.

        Failures of requests that were in flight at the same time count as one failure. Times are in monotonic seconds.
        """
        if progress or self.counts(sent_at):
            self.faults = 1 if progress else self.faults + 1
            self._counted = now
        self._last = now
        bound = min(self._max, self._base * 2.0 ** min(self.faults - 1, 30))
        self.until = max(self.until, now + self._random.uniform(0, bound))

    def counts(self, sent_at: float) -> bool:
        """Whether the failure of a request increases the backoff. It does not if the request was sent before the last such failure."""
        return not self.faults or sent_at >= self._counted

    def end(self, sent_at: float) -> None:
        """End the backoff after a request succeeded completely, unless the request was sent before the last failure."""
        if sent_at >= self._last:
            self.faults = 0
            self.until = 0.0


@dataclass(frozen=True, slots=True)
class Outage:
    since: float  # Time of the first failure, in monotonic seconds
    cause: str  # The cause of the first failure


class Lane:
    """The records that wait for one shard, in order."""

    def __init__(self, shard: str, backoff: Backoff) -> None:
        self.shard = shard
        self.backoff = backoff
        self.records: deque[Record] = deque()
        self.most = MAX_REQUEST_RECORDS  # Maximum parcels per request; reduced after throttling or a refused request
        self.is_suspect = False  # Set after Kinesis refused a whole request: this lane then gets separate requests
        self.in_flight = 0
        self.failing: Outage | None = None


@dataclass(slots=True)
class PutRecordsRequest:
    """The contents of one PutRecords request."""

    sent_at: float  # When the request was sent, in monotonic seconds
    map: ShardMap
    parcels: list[Parcel] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)  # The predicted shard of each parcel, in the order of `parcels`

    @property
    def keyed(self) -> bool:
        """Whether the records' keys determine their shards."""
        return self.map.predicts

    @property
    def aggregated(self) -> bool:
        """Whether the request has aggregates. Readers may drop an aggregate that has records outside the hash range of its shard."""
        return any(len(parcel.records) > 1 for parcel in self.parcels)

    @property
    def records(self) -> list[Record]:
        """The records in all parcels, in order."""
        return [record for parcel in self.parcels for record in parcel.records]


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of a request.

    Attributes:
        acknowledged: Records that Kinesis has written.
        placed: The parcels of the acknowledged records, each with its result from the response.
        refused: Records that can never be written.
        retried: Parcels that will be sent again, counted by error code.
        misrouted: Whether the response showed that the shard map is out of date.
        stuck: A warning about a record that Kinesis has been rejecting for a long time; empty if there is none.
        failure: The error that ends the producer; None if it continues.
    """

    acknowledged: list[Record] = field(default_factory=list)
    placed: list[tuple[Parcel, Result]] = field(default_factory=list)
    refused: list[tuple[Record, StreamError]] = field(default_factory=list)
    retried: Counter[str] = field(default_factory=Counter)
    misrouted: bool = False
    stuck: str = ""
    failure: StreamError | None = None


@dataclass(slots=True)
class _LaneOutcome:
    """The outcome of a request for the records of one lane, and thus of one shard."""

    taken: int = 0  # Number of acknowledged parcels
    throttled: bool = False  # Whether some parcels were throttled
    again: list[Record] = field(default_factory=list)  # Records to send again
    cause: str = ""  # Why the first rejected parcel is sent again


class RecordQueue:
    """Queues the records that are waiting to be sent, and builds requests from them. `max_record_bytes` is the stream's maximum record
    size, which also limits aggregates."""

    def __init__(
        self, stream: str, settings: ProducerSettings, shards: ShardMap, max_record_bytes: int, random: Random
    ) -> None:
        self._stream = stream
        self._settings = settings
        self._random = random
        self._aggregate_bytes = min(settings.aggregate_bytes, max_record_bytes)
        self._map = shards
        self._next_map: ShardMap | None = None
        self._lanes = {shard: self._lane(shard) for shard in shards.open_shards}
        self._backoff = Backoff(settings, random)
        self._expired = 0
        self._turn = 0
        self._warned_at = -inf
        self.in_flight = 0

    @property
    def shards(self) -> ShardMap:
        """The newest shard map."""
        return self._next_map or self._map

    def add(self, records: Iterable[Record]) -> None:
        """Add records to their shards' lanes."""
        lanes, shard_of = self._lanes, self._map.shard_of
        for record in records:
            lanes[shard_of(record.hash)].records.append(record)

    def adopt(self, shards: ShardMap) -> None:
        """Use a new shard map: immediately or, with `ordered`, once all requests in flight have ended."""
        self._next_map = shards
        self._adopt_when_possible()

    def next_request(self, now: float, *, eager: bool) -> PutRecordsRequest | None:
        """Build the next request; None if none is due. If `eager` (a caller is waiting), requests need not be full."""
        if self._backoff.until > now or self._next_map is not None:
            return None
        ready = [lane for lane in self._lanes.values() if lane.backoff.until <= now and self._may_send(lane)]
        if not ready or not (eager or self._worth_sending(ready, now)):
            return None
        request = PutRecordsRequest(now, self._map)
        bytes_left = MAX_REQUEST_BYTES
        # Start with a different lane each time, because the first lanes may fill the request.
        self._turn = (self._turn + 1) % len(ready)
        for lane in ready[self._turn :] + ready[: self._turn]:
            if not (most := MAX_REQUEST_RECORDS - len(request.parcels)):
                break
            if lane.is_suspect and request.parcels:
                continue
            # With `ordered`, send only one aggregate per lane: if there were two, Kinesis could reject the first and write the second.
            parcels = self._take(lane, 1 if self._ordered and self._aggregate else min(most, lane.most), bytes_left)
            if parcels:
                request.parcels += parcels
                request.shards += [lane.shard] * len(parcels)
                bytes_left -= sum([parcel.size for parcel in parcels])
                lane.in_flight += 1
            if lane.is_suspect:
                break
        self.in_flight += 1
        return request

    def due_at(self, *, eager: bool) -> float | None:
        """Return the time to call `next_request` again; None if there is nothing to send before the next response or put."""
        if self._next_map is not None:
            return None
        linger = 0.0 if eager else self._settings.linger
        times = [
            max(lane.records[0].put_at + linger, lane.backoff.until)
            for lane in self._lanes.values()
            if self._may_send(lane)
        ]
        return max(min(times), self._backoff.until) if times else None

    def settle(self, request: PutRecordsRequest, results: Sequence[Result], now: float) -> RequestOutcome:
        """Process the response to a request: one result for each of its parcels."""
        outcomes = self._ended(request)
        self._expired = 0
        self._backoff.end(request.sent_at)
        settled = RequestOutcome()
        # Ignore predictions from an older shard map: the stream may have been re-created. With AUTO, shards are not predicted anyway.
        is_current = request.map is self.shards or not self.shards.predicts
        for parcel, shard, result in zip(request.parcels, request.shards, results, strict=True):
            outcome = outcomes[shard]
            if result.code is not None:
                self._refused(parcel, judge_result(result.code, result.message or ""), outcome, settled)
            elif not request.keyed or self._is_readable(parcel, result.shard, shard if is_current else None):
                settled.misrouted |= request.keyed and result.shard != shard and self.shards.predicts
                outcome.taken += 1
                settled.acknowledged += parcel.records
                settled.placed.append((parcel, result))
            else:
                # The aggregate has records that belong to other shards, so the KCL and strict readers drop it: send its records again.
                settled.misrouted |= self.shards.predicts
                cause = f"{WRONG_SHARD}: an aggregate for {shard} was written to {result.shard}"
                self._retry(parcel, WRONG_SHARD, cause, outcome, settled)
        for shard, outcome in outcomes.items():
            self._pace(shard, outcome, request.sent_at, now, settled)
        return settled

    def fault(self, request: PutRecordsRequest, fault: WriteFault, now: float) -> RequestOutcome:
        """Process the failure of a whole request. Kinesis may have executed the request, so a retry may write its records twice."""
        self._ended(request)
        settled = RequestOutcome()
        if fault.kind is RecordRefusedError:
            self._expired = 0
            if len(request.records) == 1:
                settled.refused = [(record, _refusal(record, fault)) for record in request.records]
                if (lane := self._lanes.get(request.shards[0])) is not None:
                    lane.failing = None
                return settled
        for parcel in reversed(request.parcels):
            self._give_back(parcel.records)
        if fault.kind is RecordRefusedError:
            # Halve the request size of the lanes in a refused request until a request with a single record is refused: it is the cause.
            for shard, parcels in Counter(request.shards).items():
                if (lane := self._lanes.get(shard)) is not None:
                    lane.most, lane.is_suspect = max(1, min(lane.most, parcels) // 2), True
            settled.retried[fault.code] = len(request.parcels)
            return settled
        if fault.retry is not Retry.BRIEFLY:
            self._expired = 0
        elif self._backoff.counts(request.sent_at):
            self._expired += 1
        if fault.retry is Retry.NO or self._expired >= _MOST_EXPIRED_IN_A_ROW:
            settled.failure = self._error(fault)
            return settled
        settled.retried[fault.code] = len(request.parcels)
        self._backoff.extend(request.sent_at, now)
        for shard in dict.fromkeys(request.shards):
            if (lane := self._lanes.get(shard)) is not None:
                self._fails(lane, fault.text, now, settled)
        return settled

    @property
    def _aggregate(self) -> bool:
        # Only aggregate if keys determine the shards: otherwise, AWS does not support aggregates, and the KCL drops them.
        return self._settings.aggregate and self._map.distribution is Distribution.KEYED

    @property
    def _ordered(self) -> bool:
        return self._settings.ordered and self._map.predicts

    def _lane(self, shard: str) -> Lane:
        return Lane(shard, Backoff(self._settings, self._random))

    def _may_send(self, lane: Lane) -> bool:
        # While a shard throttles, allow only one request in flight for it: the shard would most likely reject a second one.
        alone = self._ordered or lane.most < MAX_REQUEST_RECORDS
        return len(lane.records) > 0 and not (alone and lane.in_flight)

    def _worth_sending(self, ready: list[Lane], now: float) -> bool:
        if any(lane.records[0].put_at + self._settings.linger <= now for lane in ready):
            return True
        # If `max_outstanding_records` is below two full requests, send smaller requests, so that one can fill while another is in flight.
        half = self._settings.max_outstanding_records // 2
        enough = half // 2 if self._aggregate else min(MAX_REQUEST_RECORDS, half)
        most_bytes = min(MAX_REQUEST_BYTES, self._settings.max_outstanding_bytes // 4)
        return sum(len(lane.records) for lane in ready) >= max(1, enough) or (
            sum(record.size for lane in ready for record in lane.records) >= most_bytes
        )

    def _take(self, lane: Lane, most: int, most_bytes: int) -> list[Parcel]:
        """Remove the first records of a lane, and return them as at most `most` parcels of at most `most_bytes` in total."""
        parcels: list[Parcel] = []
        skipped: list[Record] = []
        keys: set[str] = set()
        records, aggregate = lane.records, self._aggregate and not lane.is_suspect
        one_per_key = self._ordered
        while records and len(parcels) < most:
            if one_per_key and records[0].key in keys:
                # Take at most one record per key: if there were two, Kinesis could reject the first and write the second.
                skipped.append(records.popleft())
                continue
            parcel = self._packed(lane) if aggregate else records.popleft()
            if parcel.size > most_bytes:
                records.extendleft(reversed(parcel.records))
                break
            most_bytes -= parcel.size
            keys.add(parcel.key)
            parcels.append(parcel)
        records.extendleft(reversed(skipped))
        return parcels

    def _packed(self, lane: Lane) -> Parcel:
        records, packer = lane.records, Packer(self._aggregate_bytes)
        if not self._map.covers(lane.shard, records[0].hash):
            # Do not aggregate a record outside the shard's hash range: ListShards may have omitted the record's actual shard.
            return records.popleft()
        while records and self._map.covers(lane.shard, records[0].hash) and packer.add(records[0]):
            records.popleft()
        return packer.seal()

    def _ended(self, request: PutRecordsRequest) -> dict[str, _LaneOutcome]:
        self.in_flight -= 1
        outcomes = {shard: _LaneOutcome() for shard in dict.fromkeys(request.shards)}
        for shard in outcomes:
            if (lane := self._lanes.get(shard)) is not None:
                # Do not go below 0: if the lane was created after the request was sent, its count does not include the request.
                lane.in_flight = max(0, lane.in_flight - 1)
        self._adopt_when_possible()
        return outcomes

    def _adopt_when_possible(self) -> None:
        if self._next_map is None or (self._settings.ordered and self.in_flight):
            return
        former, self._map, self._next_map = self._map, self._next_map, None
        before = self._lanes
        self._lanes = {shard: before.get(shard) or self._lane(shard) for shard in self._map.open_shards}
        # Redistribute the records of all lanes: in a re-created stream, a shard with a known id may have another hash range.
        waiting = [record for lane in before.values() for record in lane.records]
        for lane in before.values():
            lane.records.clear()
        self.add(waiting)
        for shard, lane in self._lanes.items():
            if not self._map.has_same(shard, former):
                # End the outage of a re-created shard, since its lane has new records. An unchanged shard may still be failing.
                lane.failing = None

    def _give_back(self, records: Sequence[Record]) -> None:
        for record in reversed(records):
            self._lanes[self._map.shard_of(record.hash)].records.appendleft(record)

    def _is_readable(self, parcel: Parcel, shard: str | None, made_for: str | None) -> bool:
        return (
            shard == made_for
            or len(parcel.records) == 1
            or all(self.shards.covers(shard or "", record.hash) for record in parcel.records)
        )

    def _refused(self, parcel: Parcel, fault: WriteFault, outcome: _LaneOutcome, settled: RequestOutcome) -> None:
        if fault.retry is Retry.YES:
            outcome.throttled |= fault.code == THROUGHPUT_EXCEEDED
            self._retry(parcel, fault.code, fault.text, outcome, settled)
        elif fault.kind is RecordRefusedError:
            settled.refused += [(record, _refusal(record, fault)) for record in parcel.records]
        else:
            settled.failure = settled.failure or self._error(fault)
            outcome.again += parcel.records

    def _retry(self, parcel: Parcel, code: str, cause: str, outcome: _LaneOutcome, settled: RequestOutcome) -> None:
        settled.retried[code] += 1
        outcome.cause = outcome.cause or cause
        outcome.again += parcel.records

    def _pace(self, shard: str, outcome: _LaneOutcome, sent_at: float, now: float, settled: RequestOutcome) -> None:
        self._give_back(outcome.again)
        for record in outcome.again:
            if record.refused_at is None:
                record.refused_at = now
        lane = self._lanes.get(shard)
        if lane is None:
            return
        if outcome.taken or not outcome.again:
            lane.failing = None
        # After throttling, allow twice as many records as the shard accepted. Otherwise, double the limit: at a limit of 1, one bad record
        # at the front would block all others.
        lane.most = min(max(1, 2 * (outcome.taken if outcome.throttled else lane.most)), MAX_REQUEST_RECORDS)
        lane.is_suspect = lane.is_suspect and lane.most < MAX_REQUEST_RECORDS
        if not outcome.again:
            lane.backoff.end(sent_at)
            return
        lane.backoff.extend(sent_at, now, progress=outcome.taken > 0)
        if outcome.taken:
            self._name_stuck(shard, outcome, now, settled)
            return
        self._fails(lane, outcome.cause, now, settled)

    def _fails(self, lane: Lane, cause: str, now: float, settled: RequestOutcome) -> None:
        lane.failing = lane.failing or Outage(now, cause)
        lasts = now - lane.failing.since
        if lasts > self._settings.retry_timeout and settled.failure is None:
            what = f"every record for {lane.shard}" if self._map.predicts else "every record"
            settled.failure = RetriesExhaustedError(
                f"stream {self._stream} cannot be written to: {what} failed for {lasts:.0f} s, beginning with {lane.failing.cause}",
                remedy=f"Remove the cause, or raise the limit (retry_timeout is {self._settings.retry_timeout:g} s)",
            )

    def _name_stuck(self, shard: str, outcome: _LaneOutcome, now: float, settled: RequestOutcome) -> None:
        lasts, oldest = max(((now - (record.refused_at or now), record) for record in outcome.again), key=itemgetter(0))
        if lasts >= STUCK_SECONDS and now - self._warned_at >= STUCK_SECONDS:
            self._warned_at = now
            settled.stuck = (
                f"stream {self._stream}: {oldest.describe()} is not written yet: Kinesis has refused it for {lasts:.0f} s, although {shard} "
                f"accepts other records; it is sent again until Kinesis accepts it ({outcome.cause})"
            )

    def _error(self, fault: WriteFault) -> StreamError:
        return fault.error(f"stream {self._stream} cannot be written to")


def _refusal(record: Record, fault: WriteFault) -> RecordRefusedError:
    return RecordRefusedError(f"{record.describe()}: Kinesis refuses it: {fault.text}")
