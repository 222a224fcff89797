"""Counts the unread records after a position with GetRecords, without a subscription.

GetRecords has limits for each shard, which all polling readers share: five calls and 2 MB per second (API reference, GetRecords).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.quiet import QUIET_ANSWERS, QUIET_SECONDS, Quiet
from kinesis_efo.kinesis.polling import iterator_at
from kinesis_efo.positions import Position
from kinesis_efo.records.events import EventHead

CALL_SECONDS: Final = 0.25
"""Seconds between two GetRecords calls for a shard: four calls per second, of the five that all readers of the shard share."""

MOST_CALLS: Final = 20
"""Maximum number of GetRecords calls per shard. If records are far apart in time, several calls return empty pages."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread records after a position.

    Attributes:
        records: The number found; a KPL aggregate counts as one record.
        exact: False if there may be more.
        oldest: When the first of these records arrived, in epoch seconds; None if none was found.
        millis_behind: `MillisBehindLatest` of the last GetRecords response.
    """

    records: int
    exact: bool
    oldest: float | None
    millis_behind: int


async def backlog(
    kinesis: Any, clock: Clock, stream_arn: str, shard_id: str, position: Position, most_records: int
) -> Backlog:
    """Count the unread records of a shard after `position`, which must not be `SHARD_END`.

    Stops counting at `most_records` (at least 1). Raises botocore's ClientError if Kinesis rejects a call.
    """
    iterator: str | None = await iterator_at(kinesis, stream_arn, shard_id, position)
    records, oldest, behind, quiet = 0, None, 0, Quiet()
    for call in range(MOST_CALLS):
        if call:
            await clock.sleep(QUIET_SECONDS / (QUIET_ANSWERS - 1) if quiet.answers and not behind else CALL_SECONDS)
        limit = min(10_000, most_records - records)
        page = await kinesis.get_records(StreamARN=stream_arn, ShardIterator=iterator, Limit=limit)
        behind = page["MillisBehindLatest"]
        records += len(page["Records"])
        if oldest is None and page["Records"]:
            oldest = page["Records"][0]["ApproximateArrivalTimestamp"].timestamp()
        iterator = page.get("NextShardIterator")
        quiet.observe(EventHead(0, behind, len(page["Records"]), still=True), clock.monotonic())
        if iterator is None or (not behind and (0 < len(page["Records"]) < limit or quiet.is_at_tip())):
            return Backlog(records, True, oldest, behind)
        if records >= most_records:
            # The page was full, so there may be more.
            return Backlog(records, False, oldest, behind)
    return Backlog(records, False, oldest, behind)
