"""Aggregates as AWS' own library for Lambdas makes them (`aws-kinesis-agg`): it packs any keys together, whatever their shards."""

from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import md5

from aws_kinesis_agg.aggregator import RecordAggregator
from aws_kinesis_agg.deaggregator import deaggregate_records


def aggregated(records: Iterable[tuple[str, bytes]], size: int = 100) -> Iterator[dict[str, str | bytes]]:
    """Pack records (partition key, data) into aggregates; the parameters of PutRecord, or an entry of PutRecords, for each.

    Args:
        records: The user records.
        size: Their number in each aggregate.
    """
    aggregator = RecordAggregator()
    for number, (key, data) in enumerate(records, 1):
        assert aggregator.add_user_record(key, data) is None, "the aggregate is smaller than its limit"
        if number % size == 0:
            yield _parcel(aggregator)
    if aggregator.get_num_user_records():
        yield _parcel(aggregator)


def as_the_kpl(records: Iterable[tuple[str, bytes]], shards: int, size: int = 50) -> Iterator[dict[str, str | bytes]]:
    """Pack records as the KPL does, which puts together what belongs to one shard; entries of PutRecords.

    Args:
        records: The user records: partition key and data.
        shards: Number of the stream's shards, which are even.
        size: Their number in each aggregate.
    """
    of_shard: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
    for key, data in records:
        of_shard[_hash(key) * shards >> 128].append((key, data))
    for some in of_shard.values():
        firsts = [some[number] for number in range(0, len(some), size)]
        for (first, _), parcel in zip(firsts, aggregated(some, size), strict=True):
            yield {**parcel, "PartitionKey": "a", "ExplicitHashKey": str(_hash(first))}


def read_by_aws(key: str, data: bytes) -> Iterator[tuple[str, bytes, str | None]]:
    """The records in a record, as AWS's library for Python decodes them: partition key, data and explicit hash key."""
    kinesis = {
        "kinesisSchemaVersion": "1.0",
        "sequenceNumber": "1",
        "partitionKey": key,
        "approximateArrivalTimestamp": 0,
        "data": b64encode(data),
    }
    for user in deaggregate_records([{"kinesis": kinesis}]):
        found = user["kinesis"]
        yield found["partitionKey"], b64decode(found["data"]), found.get("explicitHashKey")


def _hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest())


def _parcel(aggregator: RecordAggregator) -> dict[str, str | bytes]:
    key, _, data = aggregator.clear_and_get().get_contents()
    return {"PartitionKey": key, "Data": bytes(data)}
