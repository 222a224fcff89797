"""Aggregates as AWS' own library for Lambdas makes them (`aws-kinesis-agg`): it packs any keys together, whatever their shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aws_kinesis_agg.aggregator import RecordAggregator


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


def _parcel(aggregator: RecordAggregator) -> dict[str, str | bytes]:
    key, _, data = aggregator.clear_and_get().get_contents()
    return {"PartitionKey": key, "Data": bytes(data)}
