"""What lies behind a position, found with GetRecords: no subscription is touched, but polling readers share its limits.

Relies on an aiobotocore client that is passed in. Limits: five calls and 2 MB per second and shard (API reference, GetRecords).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.transport import starting_position
from kinesis_efo.positions import Position

CALL_SECONDS: Final = 0.25
"""Between two calls to a shard: four of the five that all readers share."""

MOST_CALLS: Final = 20
"""Where records lie far apart, Kinesis answers with empty pages on the way to them."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What was found behind a position.

    Attributes:
        records: Kinesis records; aggregated ones count once.
        exact: Whether that is all of them; else there are more.
        oldest: When the first of them arrived, seconds since the epoch; None where there is none.
        millis_behind: What Kinesis said last of the distance to the tip, milliseconds.
    """

    records: int
    exact: bool
    oldest: float | None
    millis_behind: int


async def backlog(
    kinesis: Any, clock: Clock, stream_arn: str, shard_id: str, position: Position, most_records: int
) -> Backlog:
    """Look behind a position.

    Args:
        kinesis: An aiobotocore client.
        clock: Time.
        stream_arn: The stream.
        shard_id: The shard.
        position: Any but `SHARD_END`.
        most_records: How many to count, at least 1.

    Raises:
        ClientError: Kinesis refused; botocore's exception.
    """
    start = starting_position(position)
    request = {"ShardIteratorType": start["Type"]}
    if "SequenceNumber" in start:
        request["StartingSequenceNumber"] = start["SequenceNumber"]
    if "Timestamp" in start:
        request["Timestamp"] = start["Timestamp"]
    begun = await kinesis.get_shard_iterator(StreamARN=stream_arn, ShardId=shard_id, **request)
    iterator = begun["ShardIterator"]
    records, oldest, behind = 0, None, 0
    for call in range(MOST_CALLS):
        if call:
            await clock.sleep(CALL_SECONDS)
        limit = min(10_000, most_records - records)
        page = await kinesis.get_records(StreamARN=stream_arn, ShardIterator=iterator, Limit=limit)
        behind = page["MillisBehindLatest"]
        records += len(page["Records"])
        if oldest is None and page["Records"]:
            oldest = page["Records"][0]["ApproximateArrivalTimestamp"].timestamp()
        iterator = page.get("NextShardIterator")
        if iterator is None or (behind == 0 and len(page["Records"]) < limit):
            return Backlog(records, True, oldest, behind)
        if records >= most_records:
            # Exactly so many, or more: the tip is reached where nothing more has arrived.
            return Backlog(records, False, oldest, behind)
    return Backlog(records, False, oldest, behind)
