"""Measures the lag of an application, shard by shard, from its leases, the unread records, and CloudWatch.

Does not open subscriptions, so the application is not disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

from kinesis_efo.aws_errors import CALL_ERRORS, cause_of, describe
from kinesis_efo.clock import Clock
from kinesis_efo.decisions.lineage import Lineage, Shard
from kinesis_efo.decisions.losses import written_at
from kinesis_efo.kinesis.topology import SKEW_SECONDS
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.row import Lease
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind, ShardKey
from kinesis_efo_tools.operate.access import Clients
from kinesis_efo_tools.operate.backlog import backlog
from kinesis_efo_tools.operate.checkup import consumer_name
from kinesis_efo_tools.operate.watch import WatchResult

METRIC_WINDOW: Final = timedelta(minutes=10)
"""Period before now for which CloudWatch is queried. Its metrics have one value per minute, which is available some minutes later."""

_CONCURRENT_SHARDS: Final = 32


class ReaderState(Enum):
    """The state of a shard's reader."""

    READING = "reading"
    """The lease's owner keeps renewing it."""
    SILENT = "silent"
    """The lease's owner has not renewed it within the lease timeout."""
    HELD = "held"
    """The lease has an owner, but was not watched long enough to know whether the owner is alive."""
    FREE = "free"
    """The lease has no owner."""
    ENDED = "ended"
    """The shard was read to its end."""
    WAITING = "waiting"
    """The shard waits until its parents have been read to their end."""
    UNSTARTED = "unstarted"
    """The shard's parents were read to their end, but the shard has no lease yet."""


class Movement(NamedTuple):
    """When a shard's position last moved.

    Attributes:
        still_for: Seconds since the position last moved; a lower bound if `seen` is false. None if the lease table was scanned only once.
        seen: Whether the position moved while the lease table was watched.
    """

    still_for: float | None = None
    seen: bool = False


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The lag of one shard.

    Attributes:
        key: The shard.
        state: The state of its reader.
        position: How far the shard was read, according to its lease.
        read_until: Records that arrived before this time (epoch seconds) were read; None if unknown.
        owner: The worker that reads the shard.
        records: Number of unread records that were counted; None if they were not counted.
        records_exact: Whether `records` includes all unread records.
        seconds: Age of the oldest unread record in seconds; 0 if there is none; None if unknown.
        seconds_exact: Whether `seconds` was measured; if not, it is an upper bound.
        movement: When the position last moved.
        age: Seconds since the position was written to the lease table; 0 if the run itself reported it; None if unknown.
        query: Number of the query that is furthest behind in this shard; None if the run has only one query.
    """

    key: ShardKey
    state: ReaderState
    position: Position | None = None
    read_until: float | None = None
    owner: str | None = None
    records: int | None = None
    records_exact: bool = False
    seconds: float | None = None
    seconds_exact: bool = False
    movement: Movement = Movement()  # noqa: RUF009
    age: float | None = None
    query: int | None = None


class Sightings:
    """Tracks which owners renewed their leases, and when positions last moved.

    An owner counts as dead after `lease_timeout` seconds without a renewal.
    """

    def __init__(self, lease_timeout: float) -> None:
        self._timeout = lease_timeout
        self._watched_since: float | None = None
        self._renewed: dict[str, float] = {}
        self._positions: dict[str, tuple[Position | None, float, bool]] = {}

    def add(self, seen: WatchResult, now: float) -> None:
        """Add the result of watching the lease table until `now` (monotonic seconds)."""
        start = now - seen.seconds
        self._watched_since = start if self._watched_since is None else self._watched_since
        self._renewed |= dict.fromkeys(seen.live, now)
        for key, lease in seen.scan.leases.items():
            old = self._positions.get(key)
            if key in seen.moved or (old is not None and old[0] != lease.reached):
                self._positions[key] = lease.reached, now, True
            elif old is None:
                self._positions[key] = lease.reached, start, False

    def state(self, row: Lease, holder: Lease, now: float) -> ReaderState:
        """Return the state of a shard's reader.

        `row` is the shard's row. `holder` is the row with the reader's lease (see `_holder`). `now` is in monotonic seconds.
        """
        if row.checkpoint is not None and row.checkpoint.is_end:
            return ReaderState.ENDED
        if holder.owner is None:
            return ReaderState.FREE
        if (renewed := self._renewed.get(holder.key)) is not None and now - renewed < self._timeout:
            return ReaderState.READING
        silent_since = renewed if renewed is not None else self._watched_since
        return (
            ReaderState.SILENT if silent_since is not None and now - silent_since >= self._timeout else ReaderState.HELD
        )

    def movement(self, key: str, now: float) -> Movement:
        """Return when the position of the lease `key` last moved. `now` is in monotonic seconds."""
        _, since, moved = self._positions.get(key, (None, now, False))
        return Movement(now - since if moved or now - since >= 1 else None, moved)


def rows(
    ref: StreamRef,
    shards: list[Shard],
    leases: Mapping[str, Lease],
    run: Lease | None,
    sightings: Sightings,
    clock: Clock,
) -> list[ShardLag]:
    """Return the state and position of a stream's shards, without counting unread records.

    Leaves out a shard that was read to its end if all its children have been started. `leases` has the rows by shard id. `run` is the run's
    lease on the stream; None if there never was a run.
    """
    lineage, now = Lineage(shards), clock.monotonic()
    # KCL creates a row without a position when it begins to read a shard, so the row shows that reading has begun.
    positions = {shard: lease.reached or Position.at_timestamp(0) for shard, lease in leases.items()}
    done = set(lineage.droppable(positions))
    unread = {shard for shard, position in positions.items() if not position.is_end}
    found = [
        ShardLag(
            ShardKey(ref.name, shard_id),
            ReaderState.WAITING
            if shard_id in lineage and unread.intersection(lineage[shard_id].parents)
            else sightings.state(lease, _holder(lease, run), now),
            lease.reached,
            _read_until(shard_id, lease, clock.time()),
            _holder(lease, run).owner,
            movement=sightings.movement(lease.key, now),
            age=None if lease.written is None else max(0.0, clock.time() - lease.written),
        )
        for shard_id, lease in leases.items()
        if shard_id not in done
    ]
    unstarted = set(lineage.startable(positions))
    # If the stream has no rows, it was never read, and it is unknown where a query will start.
    begin = TRIM_HORIZON if positions else None
    found += [ShardLag(ShardKey(ref.name, shard), ReaderState.UNSTARTED, begin) for shard in unstarted]
    waiting: set[str] = set()
    to_visit = [*positions, *unstarted]
    while to_visit:
        children = set(lineage.children(to_visit.pop())) - positions.keys() - unstarted - waiting
        waiting |= children
        to_visit += children
    found += [ShardLag(ShardKey(ref.name, shard), ReaderState.WAITING) for shard in waiting]
    return sorted(found, key=lambda row: row.key)


async def measured(
    clients: Clients, manifest: Manifest, lagging: list[ShardLag], clock: Clock, count: int
) -> tuple[list[ShardLag], list[str]]:
    """Return the shards with their unread records counted, and the reasons why some shards could not be measured.

    Counts at most `count` unread records per shard; if `count` is 0, does not call Kinesis.
    """
    kinesis = await clients.client("kinesis")
    slots = asyncio.Semaphore(_CONCURRENT_SHARDS)
    reasons: dict[str, None] = {}
    refused = asyncio.Event()

    async def measure(row: ShardLag) -> ShardLag:
        if row.state is ReaderState.ENDED:
            return replace(row, records=0, records_exact=True, seconds=0.0, seconds_exact=True)
        if row.position is None:
            return row
        async with slots:
            if count and not refused.is_set():
                try:
                    arn = manifest.streams[row.key.stream].stream_arn
                    found = await backlog(kinesis, clock, arn, row.key.shard, row.position, count)
                except CALL_ERRORS as error:
                    if cause_of(error).refused:
                        refused.set()
                    reasons[_reason(error)] = None
                else:
                    age = 0.0 if found.oldest is None else max(0.0, clock.time() - found.oldest)
                    # If every page was empty, the age of the oldest unread record is unknown: use MillisBehindLatest.
                    seconds = age if found.oldest or found.exact else found.millis_behind / 1000
                    return replace(
                        row, records=found.records, records_exact=found.exact, seconds=seconds, seconds_exact=True
                    )
        if row.read_until is not None:
            return replace(row, seconds=max(0.0, clock.time() - row.read_until))
        return row

    return list(await asyncio.gather(*map(measure, lagging))), list(reasons)


async def reported(
    clients: Clients, streams: Mapping[str, StreamRef], now: float, window: timedelta = METRIC_WINDOW
) -> tuple[dict[str, int], list[str]]:
    """Return the latest `MillisBehindLatest` of each stream's consumer from CloudWatch, the maximum over all shards.

    Returns milliseconds by logical stream name, and the reasons if CloudWatch cannot be read. Streams without this metric are missing.
    `now` is in epoch seconds.
    """
    names = sorted(name for name, ref in streams.items() if not ref.polled)
    if not names:
        return {}, []
    queries: list[dict[str, Any]] = [
        {
            "Id": f"q{number}",
            "MetricStat": {
                "Metric": {
                    "Namespace": "AWS/Kinesis",
                    "MetricName": "SubscribeToShardEvent.MillisBehindLatest",
                    "Dimensions": [
                        {"Name": "StreamName", "Value": streams[name].stream_name},
                        {"Name": "ConsumerName", "Value": consumer_name(streams[name])},
                    ],
                },
                "Period": 60,
                "Stat": "Maximum",
            },
        }
        for number, name in enumerate(names)
    ]
    # Add a minute: the end is exclusive, and the current minute should be included.
    end = datetime.fromtimestamp(now, UTC) + timedelta(minutes=1)
    try:
        cloudwatch = await clients.client("cloudwatch")
        answer = await cloudwatch.get_metric_data(
            MetricDataQueries=queries, StartTime=end - window, EndTime=end, ScanBy="TimestampDescending"
        )
    except CALL_ERRORS as error:
        return {}, [f"CloudWatch cannot be read: {describe(error)}; the caller needs cloudwatch:GetMetricData"]
    found = {result["Id"]: result["Values"] for result in answer["MetricDataResults"]}
    return {name: round(values[0]) for number, name in enumerate(names) if (values := found.get(f"q{number}"))}, []


def by_shard(leases: Mapping[str, Lease], keys: LeaseKeys, stream: str) -> dict[str, Lease]:
    """Return the rows of one stream's shards, by shard id."""
    return {shard.shard: lease for shard, lease in keys.by_shard(leases).items() if shard.stream == stream}


def _holder(row: Lease, run: Lease | None) -> Lease:
    """Return the row whose owner reads the shard: the run's row, unless the shard's row has an owner, as with KCL."""
    return run if run is not None and row.owner is None else row


def _read_until(shard_id: str, lease: Lease, now: float) -> float | None:
    times = [lease.read_until] if lease.read_until is not None else []
    position = lease.reached
    if position is not None and position.kind is PositionKind.AT_TIMESTAMP:
        times.append(position.value / 1000)
    elif position is not None and position.kind is PositionKind.AFTER:
        written = written_at(position.value, shard_id, now + SKEW_SECONDS)
        times += [] if written is None else [written]
    return max(times, default=None)


def _reason(error: Exception) -> str:
    if cause_of(error).refused:
        return (
            f"unread records could not be counted, so the lag is an upper bound: {describe(error)}. "
            "Allow kinesis:GetShardIterator and kinesis:GetRecords to your role"
        )
    return f"not all could be measured: {describe(error)}"
