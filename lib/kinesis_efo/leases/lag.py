"""Defines how far a run is behind, which its leases' rows show to the command line. Nothing is decided by it."""

from __future__ import annotations

from typing import Any, NamedTuple

from kinesis_efo.leases import attributes


class Lag(NamedTuple):
    """How far a run is behind in one stream, as of the last renewal of the stream's lease. The command line shows it.

    `buffered` bytes and `records` Kinesis records were fetched from all shards and are not yet processed. `shard` is the slowest shard, and
    `millis_behind` is how far it is behind its tip, including the time that its fetched records wait to be processed; None if nothing was
    fetched yet. `at` is the time of this measurement in epoch milliseconds, from the run's own clock; None if not known.
    """

    shards: int
    buffered: int
    millis_behind: int | None = None
    shard: str | None = None
    records: int = 0
    at: int | None = None

    def seconds_behind(self, now: float) -> float | None:
        """The lag at `now`, epoch seconds: nothing shows that records were processed since `at`, so that time is added.

        >>> Lag(1, 0, 20_000, "shardId-000000000000", at=100_000).seconds_behind(105.0)
        25.0
        """
        if self.millis_behind is None:
            return None
        return self.millis_behind / 1000 + (0.0 if self.at is None else max(0.0, now - self.at / 1000))


def attribute_of(lag: Lag) -> dict[str, dict[str, Any]]:
    """Convert a lag to the attribute `lag`."""
    numbers = {"shards": lag.shards, "bufferedBytes": lag.buffered, "records": lag.records or None, "at": lag.at}
    fields = {name: {"N": str(value)} for name, value in numbers.items() if value is not None}
    if lag.millis_behind is not None and lag.shard is not None:
        fields |= {"millisBehind": {"N": str(lag.millis_behind)}, "shardId": {"S": lag.shard}}
    return {"lag": {"M": fields}}


def read_lag(item: attributes.Attributes) -> Lag | None:
    """Read the lag of a run; None if its row has none."""
    fields = attributes.read(item, "lag", "M", None)
    if fields is None:
        return None
    named = {**fields, "leaseKey": item.get("leaseKey", {})}  # for error messages
    return Lag(
        attributes.number(named, "shards"),
        attributes.number(named, "bufferedBytes"),
        attributes.optional_number(named, "millisBehind"),
        attributes.read(named, "shardId", "S", None),
        attributes.number(named, "records", 0),
        None if attributes.read(named, "at", "N", None) is None else attributes.milliseconds(named, "at"),
    )
