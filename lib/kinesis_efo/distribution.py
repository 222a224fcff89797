"""Who decides on the shard of a stream's records: their keys, or Kinesis itself (`RecordDistributionStrategy`).

https://docs.aws.amazon.com/streams/latest/dev/service-managed-record-distribution.html
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Distribution(Enum):
    """Who decides on the shard of a record. The values are those of the API, but for `UNKNOWN`."""

    KEYED = "USER_PARTITION_KEY"
    """Its explicit hash key or its partition key."""
    AUTO = "AUTO"
    """Kinesis, whatever the keys are."""
    UNKNOWN = "unknown"
    """It cannot be told."""


def distribution_of(client: Any, summary: Mapping[str, Any]) -> Distribution:
    """Who decides, as DescribeStreamSummary tells for records that are put now; older ones may lie by another strategy.

    Args:
        client: The client that was asked, of botocore or aiobotocore. One that is older than the strategies drops them from answers.
        summary: The `StreamDescriptionSummary`.
    """
    told = summary.get("RecordDistributionStrategy")
    if told is not None:
        return next((each for each in Distribution if each.value == told), Distribution.UNKNOWN)
    # Only streams on demand have a strategy.
    on_demand = summary.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND"
    return Distribution.UNKNOWN if on_demand and not _is_known_to(client) else Distribution.KEYED


def _is_known_to(client: Any) -> bool:
    output = client.meta.service_model.operation_model("DescribeStreamSummary").output_shape
    return "RecordDistributionStrategy" in output.members["StreamDescriptionSummary"].members


def lenient(stream: str, distribution: Distribution) -> str:
    """Why aggregates are not compared with the hash keys of their shard, although option `deaggregate` is `strict`.

    Args:
        stream: The stream's logical name.
        distribution: Who decides on the shard of its records, or did once.
    """
    why = (
        "Kinesis distributes or distributed its records itself (RecordDistributionStrategy AUTO), whatever their keys are"
        if distribution is Distribution.AUTO
        else "it cannot be told whether Kinesis distributes its records itself (kinesis:DescribeStreamSummary is refused, or "
        "botocore is too old)"
    )
    return (
        f"stream {stream}: option 'deaggregate' is strict, but no KPL aggregate is left out: {why}. After a reshard, what the KPL "
        "sends again is there twice"
    )
