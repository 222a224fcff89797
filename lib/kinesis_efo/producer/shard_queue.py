"""The records that wait for one shard, the requests that are made of them, and the rate at which they are sent. No I/O, no clock.

A request has at most 500 records and 10 MiB, including partition keys. Times are passed in. After Kinesis has throttled a queue, the queue
backs off for a random time, sends one request at a time, and adapts its window (records per request). So it writes at the shard's limit
with few retries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from kinesis_efo.producer.aggregation import Packer, Parcel
from kinesis_efo.producer.record import Record
from kinesis_efo.producer.routing import ANY_SHARD
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS, ProducerSettings

_ENTRY_OVERHEAD = 64  # framing of a record inside an aggregate, including its hash key
_AGGREGATE_OVERHEAD = 1_100  # magic number, digest and the longest partition key


class Backoff:
    """Backoff with full jitter: a random wait between 0 and a bound that doubles with each consecutive fault."""

    def __init__(self, settings: ProducerSettings, random: Random) -> None:
        self._base, self._max = settings.backoff_base, settings.backoff_max
        self._random = random
        self._faults = 0
        self._began = 0.0
        self.until = 0.0

    def is_news(self, sent_at: float) -> bool:
        """Whether a request was sent after the last fault. Faults of requests that were in flight together count as one fault."""
        return not self._faults or sent_at >= self._began

    def extend(self, sent_at: float, now: float, *, progress: bool = False) -> None:
        """Back off after a fault of a request. If a part of it succeeded (`progress`), the bound is reset."""
        if progress:
            self._faults = 1
        elif self.is_news(sent_at):
            self._faults += 1
        self._began = now
        bound = min(self._max, self._base * 2.0 ** min(self._faults - 1, 30))
        self.until = max(self.until, now + self._random.uniform(0, bound))

    def end(self) -> None:
        """End the backoff after a request that succeeded as a whole."""
        self._faults = 0
        self.until = 0.0


class Fifo:
    """A queue of waiting records: first in, first out."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def extend(self, records: Sequence[Record]) -> None:
        """Append records that are to be sent."""
        self._records.extend(records)
        self.bytes += sum([record.size for record in records])

    def give_back(self, records: Sequence[Record]) -> None:
        """Put records, which were taken before, back in front of the others, in their old order."""
        self._records.extendleft(reversed(records))
        self.bytes += sum(record.size for record in records)

    def oldest(self) -> float:
        """Return the monotonic time at which the first record was put."""
        return self._records[0].put_at

    def candidates(self) -> Iterable[Record]:
        """Return the records that may go into one request, in order."""
        return iter(self._records)

    def take(self, records: Sequence[Record]) -> None:
        """Remove these records, which are the first of the candidates."""
        for record in records:
            self._records.popleft()
            self.bytes -= record.size

    def take_first(self, most: int, most_bytes: int) -> list[Record]:
        """Remove and return as many candidates as possible: at most `most` records and `most_bytes`."""
        if self.bytes > most_bytes:
            taken = _fitting(self._records, most, most_bytes)
            self.take(taken)
            return taken
        # The fast path: most queues fit into one request.
        taken = [self._records.popleft() for _ in range(min(most, len(self._records)))]
        self.bytes -= sum([record.size for record in taken])
        return taken


class PerKey(Fifo):
    """A queue that keeps the order per partition key. A request has one record per key, because Kinesis may take only the later of two."""

    def candidates(self) -> Iterable[Record]:
        keys: set[str] = set()
        for record in self._records:
            if record.key not in keys:
                keys.add(record.key)
                yield record

    def take(self, records: Sequence[Record]) -> None:
        taken = set(map(id, records))
        self._records = deque(record for record in self._records if id(record) not in taken)
        self.bytes -= sum(record.size for record in records)

    def take_first(self, most: int, most_bytes: int) -> list[Record]:
        taken = _fitting(self.candidates(), most, most_bytes)
        self.take(taken)
        return taken


def _fitting(candidates: Iterable[Record], most: int, most_bytes: int) -> list[Record]:
    taken: list[Record] = []
    for record in candidates:
        if len(taken) == most or record.size > most_bytes:
            break
        most_bytes -= record.size
        taken.append(record)
    return taken


@dataclass(frozen=True, slots=True)
class Outage:
    """A period without progress: the monotonic time of its first fault, in seconds, and the cause of that fault."""

    since: float
    cause: str


class ShardQueue:
    """The records for one shard, and the window and backoff with which they are sent."""

    def __init__(self, shard: str, settings: ProducerSettings, random: Random) -> None:
        self.shard = shard
        # With aggregates, a FIFO keeps the order: a request has one aggregate, which Kinesis writes as a whole or not at all.
        self.records: Fifo = PerKey() if settings.ordered and not settings.aggregate else Fifo()
        self.in_flight = 0
        self.failing: Outage | None = None
        self._ordered = settings.ordered
        self._most = 1 if settings.ordered and settings.aggregate else MAX_REQUEST_RECORDS
        self.window = self._most
        self.backoff = Backoff(settings, random)

    def ready(self, now: float) -> bool:
        """Whether the queue has records that may be sent now."""
        alone = self._ordered or self.window < self._most
        return len(self.records) > 0 and self.backoff.until <= now and not (alone and self.in_flight)

    def slow_down(self, taken: int, sent_at: float, now: float) -> None:
        """Adapt the window and back off after a throttled request, of which Kinesis took `taken` parcels."""
        reduced = 2 * taken if taken else self.window // 2
        window = reduced if self.backoff.is_news(sent_at) else self.window + 2 * taken
        self.window = max(1, min(self._most, window))
        self.backoff.extend(sent_at, now, progress=taken > 0)

    def speed_up(self, sent_at: float) -> None:
        """Widen the window and end the backoff after a request that succeeded as a whole."""
        if self.backoff.is_news(sent_at):
            self.backoff.end()
            self.window = min(self._most, 2 * self.window)


@dataclass(slots=True)
class PutRecordsRequest:
    """The contents of one PutRecords request: the Kinesis records in order, the predicted shard of each, and the time of sending."""

    parcels: list[Parcel] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    sent_at: float = 0.0

    @property
    def records(self) -> list[Record]:
        """The records in all parcels, in order."""
        return [record for parcel in self.parcels for record in parcel.records]

    @property
    def keyed(self) -> bool:
        """Whether the keys of its records select their shards."""
        return self.shards[0] != ANY_SHARD


def cut(queues: Iterable[ShardQueue], aggregate_bytes: int | None, most: int) -> PutRecordsRequest:
    """Make a request of the first records of `queues`, in this order: as many as fit, but at least one. All queues may send now.

    `most` is the maximum number of parcels. `aggregate_bytes` is the maximum size of an aggregate; None: records are sent as they are.
    """
    request = PutRecordsRequest()
    bytes_left = MAX_REQUEST_BYTES
    for queue in queues:
        parcels_left = min(queue.window, most - len(request.parcels))
        if parcels_left <= 0:
            break
        parcels: Sequence[Parcel]
        if aggregate_bytes is None:
            parcels = queue.records.take_first(parcels_left, bytes_left)
        else:
            parcels = _packed(queue, parcels_left, bytes_left, aggregate_bytes, first=not request.parcels)
        if parcels:
            request.parcels += parcels
            request.shards += [queue.shard] * len(parcels)
            bytes_left -= sum([parcel.size for parcel in parcels])
            queue.in_flight += 1
    return request


def _packed(
    queue: ShardQueue, parcels_left: int, bytes_left: int, aggregate_bytes: int, *, first: bool
) -> list[Parcel]:
    parcels: list[Parcel] = []
    taken: list[Record] = []
    packer = Packer(aggregate_bytes)
    bytes_left -= _AGGREGATE_OVERHEAD
    for record in queue.records.candidates():
        cost = record.size + _ENTRY_OVERHEAD
        if cost > bytes_left and (taken or not first):
            break
        if not packer.add(record):
            parcels.append(packer.seal())
            bytes_left -= _AGGREGATE_OVERHEAD
            packer = Packer(aggregate_bytes)
            if len(parcels) == parcels_left or cost > bytes_left:
                break
            packer.add(record)
        taken.append(record)
        bytes_left -= cost
    if len(packer):
        parcels.append(packer.seal())
    queue.records.take(taken)
    return parcels
