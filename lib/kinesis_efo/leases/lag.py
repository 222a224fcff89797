"""Defines a run's lag, which is written to its lease rows for the command line. No decision depends on the lag."""

from __future__ import annotations

from typing import Any, NamedTuple

from kinesis_efo.leases import attributes


class Lag(NamedTuple):
    """A run's lag in one stream, as of the last renewal of the stream's lease. Only the command line uses it."""

    shards: int
    buffered: int  # Bytes that were fetched from all shards and are not yet processed
    # The slowest shard's lag in milliseconds, including how long fetched records have waited; None before the first fetch
    millis_behind: int | None = None
    shard: str | None = None  # The slowest shard
    records: int = 0  # Kinesis records that were fetched from all shards and are not yet processed
    at: int | None = None  # When the lag was measured, in epoch milliseconds of the run's clock; None if unknown


def of_lag(lag: Lag) -> dict[str, dict[str, Any]]:
    """Convert a run's lag to the attribute `lag`."""
    numbers = {"shards": lag.shards, "bufferedBytes": lag.buffered, "records": lag.records or None, "at": lag.at}
    fields = {name: {"N": str(value)} for name, value in numbers.items() if value is not None}
    if lag.millis_behind is not None and lag.shard is not None:
        fields |= {"millisBehind": {"N": str(lag.millis_behind)}, "shardId": {"S": lag.shard}}
    return {"lag": {"M": fields}}


def read_lag(item: attributes.Attributes) -> Lag | None:
    """Return the lag in a run's row; None if the row does not contain a lag."""
    fields = attributes.read(item, "lag", "M", None)
    if fields is None:
        return None
    named = {**fields, "leaseKey": item.get("leaseKey", {})}  # the key is for error messages
    return Lag(
        attributes.number(named, "shards"),
        attributes.number(named, "bufferedBytes"),
        attributes.optional_number(named, "millisBehind"),
        attributes.read(named, "shardId", "S", None),
        attributes.number(named, "records", 0),
        None if attributes.read(named, "at", "N", None) is None else attributes.milliseconds(named, "at"),
    )
