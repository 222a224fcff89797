"""How far an application is behind, shard by shard: from its leases, from what lies behind its positions, and from CloudWatch.

Disturbs no subscription: nothing here subscribes. Relies on `lease_watch` for who is alive and `backlog` for what is unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.aws_errors import cause_of, describe
from kinesis_efo.clock import Clock
from kinesis_efo.kinesis.lineage import Lineage, Shard
from kinesis_efo.kinesis.retention import written_at
from kinesis_efo.kinesis.topology import SKEW_SECONDS
from kinesis_efo.leases.row import Lease, LeaseKeys
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.operate.access import Clients
from kinesis_efo.operate.backlog import backlog
from kinesis_efo.operate.checkup import consumer_name
from kinesis_efo.operate.lease_watch import Watched
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind, ShardKey

METRIC_WINDOW: Final = timedelta(minutes=10)
"""CloudWatch has figures per minute, some minutes late."""

_AT_A_TIME: Final = 32


class State(Enum):
    """What is known of a shard's reader."""

    READING = "reading"
    SILENT = "silent"
    HELD = "held"
    FREE = "free"
    ENDED = "ended"
    WAITING = "waiting"
    UNSTARTED = "unstarted"


class Movement(NamedTuple):
    """What was seen of a position's movement.

    Attributes:
        still_for: Seconds for which it has been standing still; None where it was seen once only.
        seen: Whether it was seen to move; else it has not moved for at least that long.
    """

    still_for: float | None = None
    seen: bool = False


@dataclass(frozen=True, slots=True)
class ShardLag:
    """One shard.

    Attributes:
        key: The shard.
        state: Reading: its owner renews the lease. Silent: it has not for the lease timeout. Held: not known yet. Free: nobody
            owns it. Ended: read to its end. Waiting: for its parents. Unstarted: nobody began it, although its parents are read.
        position: How far it was read, as its lease says.
        read_until: What arrived before this time was read, seconds since the epoch; None where that cannot be told.
        owner: Who reads it.
        records: Unread records, as far as counted.
        records_exact: Whether there are no more.
        seconds: How long the oldest unread record has been waiting; 0 where there is none.
        seconds_exact: Whether that was measured; else it is at most so.
        movement: Whether the position moves.
    """

    key: ShardKey
    state: State
    position: Position | None = None
    read_until: float | None = None
    owner: str | None = None
    records: int | None = None
    records_exact: bool = False
    seconds: float | None = None
    seconds_exact: bool = False
    movement: Movement = Movement()  # noqa: RUF009


class Sightings:
    """What was seen of the leases over time: who is alive, and since when positions stand still.

    Args:
        lease_timeout: Seconds of silence after which an owner counts as dead.
    """

    def __init__(self, lease_timeout: float) -> None:
        self._timeout = lease_timeout
        self._began: float | None = None
        self._renewed: dict[str, float] = {}
        self._positions: dict[str, tuple[Position | None, float, bool]] = {}

    def add(self, seen: Watched, now: float) -> None:
        """Take note of a watch that has just ended, at that monotonic time."""
        start = now - seen.seconds
        self._began = start if self._began is None else self._began
        self._renewed |= dict.fromkeys(seen.live, now)
        for key, lease in seen.scan.leases.items():
            old = self._positions.get(key)
            if key in seen.moved or (old is not None and old[0] != lease.checkpoint):
                self._positions[key] = lease.checkpoint, now, True
            elif old is None:
                self._positions[key] = lease.checkpoint, start, False

    def state(self, lease: Lease, now: float) -> State:
        """What is known of a lease's owner."""
        if lease.checkpoint is not None and lease.checkpoint.is_end:
            return State.ENDED
        if lease.owner is None:
            return State.FREE
        if (renewed := self._renewed.get(lease.key)) is not None and now - renewed < self._timeout:
            return State.READING
        silent_since = renewed if renewed is not None else self._began
        return State.SILENT if silent_since is not None and now - silent_since >= self._timeout else State.HELD

    def movement(self, key: str, now: float) -> Movement:
        """What was seen of a position's movement."""
        _, since, moved = self._positions.get(key, (None, now, False))
        return Movement(now - since if moved or now - since >= 1 else None, moved)


def rows(
    ref: StreamRef, shards: list[Shard], leases: Mapping[str, Lease], sightings: Sightings, clock: Clock
) -> list[ShardLag]:
    """The shards of a stream that matter, without what lies behind their positions.

    Those read to their end whose children have begun are history, and left out.

    Args:
        ref: The stream.
        shards: As listed.
        leases: Its rows, by shard id.
        sightings: What was seen of them.
        clock: Time.
    """
    lineage, now = Lineage(shards), clock.monotonic()
    # A row that KCL has not given a position yet has begun as well.
    positions = {shard: lease.checkpoint or Position.at_timestamp(0) for shard, lease in leases.items()}
    done = set(lineage.droppable(positions))
    found = [
        ShardLag(
            ShardKey(ref.name, shard_id),
            sightings.state(lease, now),
            lease.checkpoint,
            _read_until(shard_id, lease, clock.time()),
            lease.owner,
            movement=sightings.movement(lease.key, now),
        )
        for shard_id, lease in leases.items()
        if shard_id not in done
    ]
    unstarted = set(lineage.startable(positions))
    # Where nothing was ever read, nobody can say from where it should have been.
    begin = TRIM_HORIZON if positions else None
    found += [ShardLag(ShardKey(ref.name, shard), State.UNSTARTED, begin) for shard in unstarted]
    waiting: set[str] = set()
    ahead = [*positions, *unstarted]
    while ahead:
        later = set(lineage.children(ahead.pop())) - positions.keys() - unstarted - waiting
        waiting |= later
        ahead += later
    found += [ShardLag(ShardKey(ref.name, shard), State.WAITING) for shard in waiting]
    return sorted(found, key=lambda row: row.key)


async def measured(
    clients: Clients, manifest: Manifest, lagging: list[ShardLag], clock: Clock, count: int
) -> tuple[list[ShardLag], list[str]]:
    """The same shards with what lies behind their positions.

    Args:
        clients: Where the clients come from.
        manifest: The application.
        lagging: From `rows`.
        clock: Time.
        count: How many unread records to count per shard; 0 asks Kinesis nothing.

    Returns:
        The shards, and why something could not be measured.
    """
    kinesis = await clients.client("kinesis")
    slots = asyncio.Semaphore(_AT_A_TIME)
    reasons: dict[str, None] = {}
    refused = asyncio.Event()

    async def measure(row: ShardLag) -> ShardLag:
        if row.state is State.ENDED:
            return replace(row, records=0, records_exact=True, seconds=0.0, seconds_exact=True)
        if row.position is None:
            return row
        async with slots:
            if count and not refused.is_set():
                try:
                    arn = manifest.streams[row.key.stream].stream_arn
                    found = await backlog(kinesis, clock, arn, row.key.shard, row.position, count)
                except (ClientError, BotoCoreError, OSError) as error:
                    if cause_of(error).refused:
                        refused.set()
                    reasons[_reason(error)] = None
                else:
                    waiting = 0.0 if found.oldest is None else max(0.0, clock.time() - found.oldest)
                    # Empty pages all the way: what Kinesis says of the distance is all there is.
                    seconds = waiting if found.oldest or found.exact else found.millis_behind / 1000
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
    """What CloudWatch last heard of each stream's consumer: `MillisBehindLatest`, the worst of its shards.

    Args:
        clients: Where the clients come from.
        streams: By logical name.
        now: Seconds since the epoch.
        window: How far back to look.

    Returns:
        Milliseconds by logical name, where there are figures; and why there are none.
    """
    names = sorted(streams)
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
    # Exclusive; the minute that has just begun counts.
    end = datetime.fromtimestamp(now, UTC) + timedelta(minutes=1)
    try:
        cloudwatch = await clients.client("cloudwatch")
        answer = await cloudwatch.get_metric_data(
            MetricDataQueries=queries, StartTime=end - window, EndTime=end, ScanBy="TimestampDescending"
        )
    except (ClientError, BotoCoreError, OSError) as error:
        return {}, [f"CloudWatch was not asked: {describe(error)}"]
    found = {result["Id"]: result["Values"] for result in answer["MetricDataResults"]}
    return {name: round(values[0]) for number, name in enumerate(names) if (values := found.get(f"q{number}"))}, []


def by_shard(leases: Mapping[str, Lease], keys: LeaseKeys, stream: str) -> dict[str, Lease]:
    """The leases of one stream, by shard id."""
    decoded = ((keys.decode(key), lease) for key, lease in leases.items())
    return {shard.shard: lease for shard, lease in decoded if shard is not None and shard.stream == stream}


def _read_until(shard_id: str, lease: Lease, now: float) -> float | None:
    times = [lease.read_until] if lease.read_until is not None else []
    if lease.checkpoint is not None and lease.checkpoint.kind is PositionKind.AT_TIMESTAMP:
        times.append(lease.checkpoint.value / 1000)
    elif lease.checkpoint is not None and lease.checkpoint.kind is PositionKind.AFTER:
        written = written_at(lease.checkpoint.value, shard_id, now + SKEW_SECONDS)
        times += [] if written is None else [written]
    return max(times, default=None)


def _reason(error: Exception) -> str:
    if cause_of(error).refused:
        return (
            f"what is unread could not be measured, only bounded: {describe(error)}. "
            "Allow kinesis:GetShardIterator and kinesis:GetRecords to yourself"
        )
    return f"not all could be measured: {describe(error)}"
