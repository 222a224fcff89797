"""How Kinesis distributes a stream's records over its shards: by their keys, or regardless of the keys (`RecordDistributionStrategy`).

https://docs.aws.amazon.com/streams/latest/dev/service-managed-record-distribution.html
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Distribution(Enum):
    """How Kinesis chooses the shard of a record. The values are those of the API, except for `UNKNOWN`."""

    KEYED = "USER_PARTITION_KEY"
    """Kinesis uses the explicit hash key, or else the partition key."""
    AUTO = "AUTO"
    """Kinesis ignores the keys."""
    UNKNOWN = "unknown"
    """The strategy cannot be determined, for example because DescribeStreamSummary is denied."""


def distribution_of(client: Any, summary: Mapping[str, Any]) -> Distribution:
    """Return how new records are distributed, from a DescribeStreamSummary response. Older records may be distributed differently."""
    told = summary.get("RecordDistributionStrategy")
    if told is not None:
        return next((each for each in Distribution if each.value == told), Distribution.UNKNOWN)
    # A response without a strategy means that keys determine the shards, unless an older botocore has removed the strategy of an
    # on-demand stream from the response.
    return Distribution.UNKNOWN if on_demand(summary) and not _is_known_to(client) else Distribution.KEYED


def on_demand(summary: Mapping[str, Any]) -> bool:
    """Return whether a DescribeStreamSummary response describes an on-demand stream."""
    return bool(summary.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND")


def _is_known_to(client: Any) -> bool:
    output = client.meta.service_model.operation_model("DescribeStreamSummary").output_shape
    return "RecordDistributionStrategy" in output.members["StreamDescriptionSummary"].members


def lenient(stream: str, distribution: Distribution) -> str:
    """Return the warning that `deaggregate=strict` has no effect on a stream with this distribution."""
    why = (
        "Kinesis distributes or distributed its records itself (RecordDistributionStrategy AUTO), whatever their keys are"
        if distribution is Distribution.AUTO
        else "it is unknown whether Kinesis distributes its records itself (kinesis:DescribeStreamSummary is denied, or "
        "botocore is too old)"
    )
    return (
        f"stream {stream}: option 'deaggregate' is strict, but no KPL aggregate is dropped: {why}. After a reshard, records that "
        "the KPL sends again appear twice"
    )
