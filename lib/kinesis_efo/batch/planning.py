"""Plans a batch read: gets shards, retention and the time from Kinesis, and rejects impossible reads. The module `ranges` decides which
range of each shard is read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Final

from kinesis_efo.aws import AsyncClients
from kinesis_efo.batch.ranges import LISTED_SECONDS, MARGIN_SECONDS, BatchRange, batch_ranges
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.decisions.lineage import Lineage, ReadBound, Shard
from kinesis_efo.decisions.losses import names_another
from kinesis_efo.decisions.quiet import FUTURE_SECONDS
from kinesis_efo.errors import ConfigurationError
from kinesis_efo.kinesis.bounds import check_ends, check_streams, in_future, instant, not_listed
from kinesis_efo.kinesis.clock import MOST_SKEW_SECONDS, KinesisClock
from kinesis_efo.kinesis.faults import report_loss
from kinesis_efo.kinesis.topology import StreamSummary, Topology, explained, identified, read_distribution
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo.options import BatchOptions, Deaggregation
from kinesis_efo.patience import Patience
from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind
from kinesis_efo.records.distribution import Distribution, lenient

logger = logging.getLogger(__name__)

_TIP_MS: Final = 1_000
_AGAIN_SECONDS: Final = 0.25
_READ_APART_SECONDS: Final = 0.01

_LONGEST_WAIT_SECONDS: Final = FUTURE_SECONDS + 5.0


def tip_at(loaded: float) -> Position:
    """Return the position for `LATEST`: one second after `loaded` (epoch seconds). All records acknowledged before `loaded` precede it."""
    return Position.at_timestamp(round(loaded * 1000) + _TIP_MS)


def reset_by(before: float, now: float) -> float:
    """Return by how many seconds this machine's clock was adjusted. `before` and `now` are the clock's offsets from the monotonic clock."""
    # Ignore small differences: the two clocks are not read at the same instant, but each action on a DataFrame must get the same end.
    return now - before if abs(now - before) > _READ_APART_SECONDS else 0.0


def tip_for_kinesis(tip: Position, clock: KinesisClock, *, here: bool) -> Position:
    """Adjust a result of `tip_at` to Kinesis' clock. The result is at most `FUTURE_SECONDS` in the future. `here` must be true if `tip` was
    computed on this machine, whose clock skew is known."""
    # Round the clock skew to whole seconds: each action on a DataFrame measures it again, but must read the same rows.
    off = round(clock.skew) if here and clock.skew > MOST_SKEW_SECONDS else 0
    if here and (behind := clock.latest - clock.here) * 1000 > _TIP_MS:
        # Assume the largest possible skew, so that the read includes all records that were acknowledged before the DataFrame was loaded.
        off = -ceil(behind)
    corrected = tip.value - 1000 * off
    too_late = corrected / 1000 > clock.latest + FUTURE_SECONDS
    return tip_at(clock.latest) if too_late else Position.at_timestamp(corrected)


async def kinesis_time(manifest: Manifest, options: BatchOptions, clock: Clock | None = None) -> int:
    """Return an upper bound of Kinesis' time in epoch milliseconds. It is too high by at most one second plus the duration of a call.
    Raises `StreamError` if Kinesis does not respond."""
    known = KinesisClock(clock or SystemClock())
    ref = next(iter(manifest.streams.values()))
    clients = AsyncClients(options.source.aws.of(manifest.application), manifest.region)
    async with await clients.open("kinesis") as client:
        known.watch(client)
        lister = Topology(client, known, Patience(options.source.retry, known))
        await explained(lister.shards(ref.stream_arn), ref, manifest.source)
    return round(known.latest * 1000)


async def plan(
    manifest: Manifest, options: BatchOptions, tip: Position, clock: Clock | None = None, *, here: bool = True
) -> list[BatchRange]:
    """Plan a read. Waits until its latest end time has passed, because a shard may be split until then.

    Args:
        tip: The position for `LATEST`.
        here: Whether `tip` is based on this machine's clock. If not, it is based on Kinesis' clock.

    Raises `ConfigurationError` for an impossible start or end, and `DataLossError` if the read begins before the trim horizon and
    `failOnDataLoss` is set.
    """
    clock = KinesisClock(clock or SystemClock())
    for option, bounds in (("startingPosition", options.starts), ("endingPosition", options.source.ends)):
        check_streams(option, bounds, manifest.streams, f" (from {manifest.source})")
    clients = AsyncClients(options.source.aws.of(manifest.application), manifest.region)
    patience = Patience(options.source.retry, clock)
    async with await clients.open("kinesis") as client:
        clock.watch(client)
        lister = Topology(client, clock, patience)
        refs = list(manifest.streams.values())

        async def listings() -> list[list[Shard]]:
            return await asyncio.gather(
                *(explained(lister.shards(ref.stream_arn), ref, manifest.source) for ref in refs)
            )

        # Get the creation times before listing the shards, so that `check_planned` detects a stream that is recreated in between.
        identities = await asyncio.gather(*(identified(lister, ref.stream_arn) for ref in refs))
        listed = await listings()  # the responses also set `clock`
        if here and clock.skew == 0 and clock.latest - clock.here > _TIP_MS / 1000:
            # List again to narrow `clock.latest`: response times are whole seconds, so it may be over a second ahead of the actual time.
            await clock.sleep(_AGAIN_SECONDS)
            listed = await listings()
        tip = tip_for_kinesis(tip, clock, here=here)
        given = options.source.ends
        ends = [tip, given.everywhere, *given.streams.values(), *given.shards.values()]
        left = max(map(_milliseconds, ends)) / 1000 - clock.time()
        if 0 < left <= _LONGEST_WAIT_SECONDS:  # a later end raises an error
            await clock.sleep(left)
            listed = await listings()
        planners = [BatchPlanner(ref, manifest.source, options, tip, lister, clock.latest) for ref in refs]
        planned = await asyncio.gather(*(each.plan(shards) for each, shards in zip(planners, listed, strict=True)))
        found = [
            replace(part, planned=clock.latest, stream_created=identity.created)
            for identity, parts in zip(identities, planned, strict=True)
            for part in parts
        ]
        # Wait until the latest start time has passed on Kinesis' clock: Kinesis rejects a start in the future.
        newest = max((part.since or 0 for part in found), default=0)
        await clock.sleep(min(FUTURE_SECONDS, max(0.0, newest / 1000 - clock.time())))
    return found


class BatchPlanner:
    """Plans a batch read of one stream. `tip`: the position at which a read up to `LATEST` ends. `now`: Kinesis' time or later, epoch seconds."""

    def __init__(
        self, ref: StreamRef, source: str, options: BatchOptions, tip: Position, lister: Topology, now: float
    ) -> None:
        self._ref = ref
        self._source = source
        self._tip = tip
        self._lister = lister
        self._now = now
        self._fail = options.source.fail_on_data_loss
        self._start_name, self._end_name = (
            options.name("since", "startingPosition"),
            options.name("until", "endingPosition"),
        )
        self._deaggregate = options.source.deaggregate
        self._start = options.starts.of(ref.name) or TRIM_HORIZON
        self._starts = {shard: position or TRIM_HORIZON for shard, position in options.starts.named(ref.name).items()}
        self._bounds = options.source.ends
        self._end = self._bounds.of(ref.name) or tip
        self._ends = {shard: position or tip for shard, position in self._bounds.named(ref.name).items()}

    async def plan(self, shards: list[Shard]) -> list[BatchRange]:
        """Plan the ranges to read. `shards` is the result of ListShards. Raises the same errors as the function `plan`."""
        by_id = {shard.shard_id: shard for shard in shards}
        check_ends(self._where, self._end_name, self._bounds, self._ref.name, shards, self._now)
        self._check_starts(by_id)
        self._check_order()
        starts = await self._within_retention()
        found = batch_ranges(
            self._ref.name,
            shards,
            ReadBound(starts, self._starts, await self._open_at(starts, -MARGIN_SECONDS, by_id)),
            ReadBound(self._end, self._ends, await self._open_at(self._end, LISTED_SECONDS, by_id)),
        )
        logger.info(
            "stream %r: batch read of %d of %d shards from %s to %s%s",
            self._ref.name, len(found), len(shards), _shown(starts), _shown(self._end),
            f"; other positions for {', '.join(sorted({*self._starts, *self._ends}))}" if self._starts or self._ends else "",
        )  # fmt: skip
        found = await self._with_horizon(found)
        strict, newest, partly = await self._is_strict(), max(by_id), bool(self._starts or self._ends)
        return [replace(part, strict=strict, newest=newest, partly=partly) for part in found]

    async def _with_horizon(self, found: list[BatchRange]) -> list[BatchRange]:
        """Store the trim horizon in the ranges that begin at it, so that the read can detect records that expire after planning."""
        created, horizon = 0, self._now - _SHORTEST_RETENTION
        if any(part.start == TRIM_HORIZON and part.created <= horizon for part in found):
            created, retention = await self._summary()
            horizon = self._now - retention
        return [
            replace(part, horizon=horizon, created=part.created or created) if part.start == TRIM_HORIZON else part
            for part in found
        ]

    async def _summary(self) -> StreamSummary:
        return await explained(self._lister.summary(self._ref.stream_arn), self._ref, self._source)

    async def _is_strict(self) -> bool:
        """Whether to drop KPL aggregates that contain records of other shards. Warns if `deaggregate=strict` has no effect."""
        if self._deaggregate is not Deaggregation.STRICT:
            return False
        distribution = await read_distribution(self._lister.distribution(self._ref.stream_arn), self._ref)
        if distribution is not Distribution.KEYED:
            logger.warning("%s", lenient(self._ref.name, distribution))
        return distribution is Distribution.KEYED

    @property
    def _where(self) -> str:
        return f"stream {self._ref.name!r}: {self._ref.stream_arn} (from {self._source})"

    def _check_starts(self, shards: Mapping[str, Shard]) -> None:
        # Shard ids increase and are never reused, so a missing id that is lower than the newest one belongs to a trimmed shard.
        newest = max(shards, default="")
        for shard_id in self._starts:
            if shard_id not in shards:
                if shard_id > newest:
                    raise not_listed(self._where, "startingPosition", shard_id, shards)
                self._report_loss(f"shard {shard_id} does not exist any more: its records are gone (retention)")
        for option, positions in ((self._start_name, self._starts), (self._end_name, self._ends)):
            for shard_id, position in positions.items():
                if shard_id in shards and names_another(position, shards[shard_id]):
                    raise ConfigurationError(
                        f"{self._where}: the position {position} in {option} does not belong to shard {shard_id}; give each shard a "
                        "sequence number of its own records"
                    )

    def _check_order(self) -> None:
        for shard_id in (None, *self._starts, *self._ends):
            start = self._starts.get(shard_id or "", self._start)
            end = self._ends.get(shard_id or "", self._end)
            if start.kind is end.kind and start.kind in _ORDERED and start.value > end.value:
                if end == self._tip:
                    raise in_future(self._where, self._start_name, str(start), start.value / 1000, self._now)
                raise ConfigurationError(
                    f"{self._where}: {f'shard {shard_id}, ' if shard_id else ''}the end {_shown(end)} is before the start "
                    f"{_shown(start)}: swap {self._start_name} and {self._end_name}"
                )

    async def _within_retention(self) -> Position:
        """Return the stream's start position. A time before the trim horizon becomes `TRIM_HORIZON`, also in the shards' `_starts`."""
        times = [
            position for position in (self._start, *self._starts.values()) if position.kind is PositionKind.AT_TIMESTAMP
        ]
        if not times:
            return self._start
        earliest = min(position.value for position in times) / 1000
        if self._now - earliest <= _SHORTEST_RETENTION:
            return self._start
        created, retention = await self._summary()
        horizon = self._now - retention
        if earliest >= horizon:
            return self._start
        if created < horizon:
            self._report_loss(
                f"the read begins at {instant(earliest)}, and the stream keeps its records for {retention / 3600:g} h only: any "
                f"records before {instant(horizon)} are gone"
            )
        self._starts = {shard: self._or_horizon(position, horizon) for shard, position in self._starts.items()}
        return self._or_horizon(self._start, horizon)

    def _or_horizon(self, position: Position, horizon: float) -> Position:
        early = position.kind is PositionKind.AT_TIMESTAMP and position.value / 1000 < horizon
        return TRIM_HORIZON if early else position

    def _report_loss(self, what: str) -> None:
        report_loss(f"{self._where}: {what}", fail=self._fail)

    async def _open_at(self, position: Position, margin: float, known: Mapping[str, Shard]) -> list[str] | None:
        """Return the shards that were open `margin` seconds after a position; None if this cannot be determined.

        Reasons for None: the position is not a time, the time is recent, or the returned shards do not fit the listed shards in `known`.
        """
        at = position.value / 1000 + margin
        if position.kind is not PositionKind.AT_TIMESTAMP or at >= self._now - MARGIN_SECONDS:
            return None
        opened = await explained(
            self._lister.shards_open_at(self._ref.stream_arn, round(at * 1000)), self._ref, self._source
        )
        named = [shard.shard_id for shard in opened or ()]
        whole = all(shard in known for shard in named) and Lineage(known.values()).is_whole(named)
        return named if whole else None


def _milliseconds(position: Position | None) -> int:
    return position.value if position is not None and position.kind is PositionKind.AT_TIMESTAMP else 0


def _shown(position: Position) -> str:
    return instant(position.value / 1000) if position.kind is PositionKind.AT_TIMESTAMP else str(position)


_SHORTEST_RETENTION: Final = 24 * 3600.0 - 60
_ORDERED: Final = (PositionKind.AT_TIMESTAMP, PositionKind.AFTER)
