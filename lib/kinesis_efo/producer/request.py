"""Makes PutRecords requests from the queues: at most 500 records and 10 MiB each, including partition keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kinesis_efo.producer.aggregation import Packer, Parcel
from kinesis_efo.producer.record import Record
from kinesis_efo.producer.routing import ANY_SHARD
from kinesis_efo.producer.settings import MAX_REQUEST_BYTES, MAX_REQUEST_RECORDS
from kinesis_efo.producer.shard_queue import ShardQueue

_ENTRY_OVERHEAD = 64  # framing of a record inside an aggregate, including its hash key
_AGGREGATE_OVERHEAD = 1_100  # magic number, digest and the longest partition key


@dataclass(slots=True)
class PutRecordsRequest:
    """The contents of one PutRecords request.

    Attributes:
        parcels: The Kinesis records, in order.
        shards: The predicted shard of each parcel.
        records: The records in all parcels, in order.
        sent_at: Time of sending, monotonic seconds.
    """

    parcels: list[Parcel] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    sent_at: float = 0.0

    @property
    def keyed(self) -> bool:
        """Whether the keys of its records select their shards."""
        return self.shards[0] != ANY_SHARD


def cut(queues: Iterable[ShardQueue], aggregate_bytes: int | None) -> PutRecordsRequest:
    """Make a request of the first records of `queues`, in this order: as many as fit, but at least one. All queues may send now.

    `aggregate_bytes` is the maximum size of an aggregate; None: records are sent as they are.
    """
    request = PutRecordsRequest()
    bytes_left = MAX_REQUEST_BYTES
    for queue in queues:
        parcels_left = min(queue.window, MAX_REQUEST_RECORDS - len(request.parcels))
        if parcels_left <= 0:
            break
        parcels: Sequence[Parcel]
        if aggregate_bytes is None:
            parcels = records = queue.records.take_first(parcels_left, bytes_left)
        else:
            parcels, records = _packed(queue, parcels_left, bytes_left, aggregate_bytes, first=not request.parcels)
        if parcels:
            request.parcels += parcels
            request.shards += [queue.shard] * len(parcels)
            request.records += records
            bytes_left -= sum([parcel.size for parcel in parcels])
            queue.in_flight += 1
    return request


def _packed(
    queue: ShardQueue, parcels_left: int, bytes_left: int, aggregate_bytes: int, *, first: bool
) -> tuple[list[Parcel], list[Record]]:
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
    return parcels, taken
