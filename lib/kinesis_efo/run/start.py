"""Computes the start offset of a new query (option `startingPosition`) or of streams added to a query (`newStreamPosition`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from math import floor, inf
from typing import Final

from kinesis_efo.clock import Clock
from kinesis_efo.decisions.lineage import Beginning, ReadBound, beginning, read_to_end
from kinesis_efo.decisions.losses import created_at
from kinesis_efo.errors import ConfigurationError, LeaseTableError, StreamError, StreamReplacedError
from kinesis_efo.fetcher.streams import LIST_AGAIN_SECONDS, by_stream
from kinesis_efo.kinesis.bounds import check_streams, not_listed
from kinesis_efo.kinesis.stream import Stream
from kinesis_efo.leases.keys import LeaseKeys
from kinesis_efo.leases.notes import strays
from kinesis_efo.leases.store import LeaseStore, Scan
from kinesis_efo.options import Bounds, Start
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, PositionKind, ShardKey

logger = logging.getLogger(__name__)

_SHOWN: Final = 5

_LISTED_SECONDS: Final = 90.0
"""Maximum seconds to wait until ListShards returns all shards at which a query starts."""


async def start_offset(
    start: Start, streams: Mapping[str, Stream], table: LeaseStore, lease_keys: LeaseKeys, clock: Clock
) -> Offset:
    """Return the first offset of a new query, from the option `startingPosition`. The lease table is read only for `LEASES`.

    `clock` is Kinesis' clock. `LATEST` becomes the current time, so that a restart before the first record does not skip records. Raises
    StreamReplacedError if the lease rows belong to another stream, and LeaseTableError if `LEASES` finds no rows of a stream.
    """
    now = _now(clock)
    since: Mapping[str, float] = {}
    if start.from_leases:
        positions, scan = await _from_leases(streams, table, lease_keys, clock)
        since = _start_times(positions, scan, lease_keys)
        for name in streams:
            if not any(key.stream == name for key in positions):
                raise LeaseTableError(
                    f"kinesis-efo option 'startingPosition' is LEASES, but {table.label} has no readable rows for stream {name!r}"
                    f"{_unreadable(scan.unreadable)}",
                    remedy="Copy them from the KCL application's table with `kinesis-efo leases import-kcl`, or start at TRIM_HORIZON or LATEST",
                ).about(name)
    else:
        positions = await _from_bounds(start.bounds or Bounds(start.position), streams, clock)
    logger.debug("new query: %d shards from %s", len(positions), start.bounds or start.position or now)
    return await _offset(positions, streams, since)


async def added_offset(
    start: Start, streams: Mapping[str, Stream], table: LeaseStore, lease_keys: LeaseKeys, clock: Clock
) -> Offset:
    """Return the start offset of streams that were added to a query with a checkpoint, from the option `newStreamPosition`.

    The lease table is read only for `LEASES`; streams without lease rows then start at TRIM_HORIZON. Raises StreamReplacedError if the
    lease rows belong to another stream.
    """
    positions: dict[ShardKey, Position] = {}
    since: Mapping[str, float] = {}
    if start.from_leases:
        positions, scan = await _from_leases(streams, table, lease_keys, clock)
        since = _start_times(positions, scan, lease_keys)
    position = TRIM_HORIZON if start.from_leases else start.position or _now(clock)
    known = {key.stream for key in positions}
    others = {name: streams[name] for name in streams if name not in known}
    positions |= await _from_bounds(Bounds(position), others, clock)
    for name in streams:
        shards = sum(key.stream == name for key in positions)
        where = "the checkpoints in the lease table" if name in known else position
        logger.warning("stream %s is new to this query: its shards (%d) begin at %s", name, shards, where)
    return await _offset(positions, streams, since)


async def _offset(
    positions: Mapping[ShardKey, Position], streams: Mapping[str, Stream], since: Mapping[str, float]
) -> Offset:
    created = {name: at for name, stream in streams.items() if (at := stream.identity.created) is not None}
    return Offset(positions, horizons={**await _horizons(positions, streams), **since}, created=created)


def _start_times(positions: Mapping[ShardKey, Position], scan: Scan, lease_keys: LeaseKeys) -> dict[str, float]:
    """Return each stream's trim horizon when the application began to read it. Leaves out streams without shards at `TRIM_HORIZON`.

    Records that were trimmed since then count as lost.
    """
    found: dict[str, float] = {}
    for shard, lease in lease_keys.by_shard(scan.leases).items():
        if positions.get(shard) == TRIM_HORIZON and lease.read_since is not None:
            found[shard.stream] = min(lease.read_since, found.get(shard.stream, inf))
    return found


async def _horizons(positions: Mapping[ShardKey, Position], streams: Mapping[str, Stream]) -> dict[str, float]:
    """Return the trim horizon (epoch seconds) of streams with shards at `TRIM_HORIZON`. Records trimmed from now on count as lost."""
    begin = [key for key, position in positions.items() if position == TRIM_HORIZON]
    # Leave out streams in which a shard at TRIM_HORIZON has a finished parent, or an unfinished shard was trimmed: there, even records that
    # were trimmed before now are lost.
    continued = {key.stream for key in begin if SHARD_END in _of_parents(key, positions, streams[key.stream])}
    continued |= {name for name, rows in by_stream(positions).items() if streams[name].lineage.lost(rows)}
    return {name: await streams[name].horizon() for name in sorted({key.stream for key in begin} - continued)}


def _of_parents(key: ShardKey, positions: Mapping[ShardKey, Position], stream: Stream) -> list[Position | None]:
    shard = stream.shard(key.shard)
    return [positions.get(ShardKey(key.stream, parent)) for parent in (shard.parents if shard is not None else ())]


def _now(clock: Clock) -> Position:
    # Round down: it is better to read a few earlier records than to skip some. Kinesis' clock is only known to within a second.
    return Position.at_timestamp(floor(clock.time() * 1000))


async def _from_bounds(bounds: Bounds, streams: Mapping[str, Stream], clock: Clock) -> dict[ShardKey, Position]:
    check_streams("startingPosition", bounds, streams)
    now = _now(clock)
    positions: dict[ShardKey, Position] = {}
    for name, stream in streams.items():
        named = {shard: position or now for shard, position in bounds.named(name).items()}
        for shard in named:
            if stream.shard(shard) is None:
                known = (each.shard_id for each in stream.lineage.shards)
                raise not_listed(f"stream {name!r}", "startingPosition", shard, known)
        waiting, too_far = _before({ShardKey(name, shard): at for shard, at in named.items()}, streams, {})
        if too_far:
            raise ConfigurationError(
                f"kinesis-efo option 'startingPosition' names {', '.join(sorted(key.shard for key in too_far))} of stream {name!r} and a parent "
                "with records before it: a shard begins when its parents have ended. Name only one of them"
            )
        named = {shard: at for shard, at in named.items() if ShardKey(name, shard) not in waiting}
        everywhere = await stream.starting_positions(bounds.of(name) or now)
        found = await _beginning(stream, ReadBound(next(iter(everywhere.values())), named, everywhere.keys()), clock)
        if found.left_out:
            raise ConfigurationError(
                f"the query would never read {', '.join(found.left_out)} of stream {name!r}: if 'startingPosition' names a parent and a "
                "child of such a shard, name the shard as well; otherwise Kinesis does not list its parents yet: restart the query"
            )
        positions |= {ShardKey(name, shard): begin for shard, begin in found.offset.items()}
    return positions


async def _beginning(stream: Stream, start: ReadBound, clock: Clock) -> Beginning:
    """Return the query's first offset in a stream. If necessary, first waits until ListShards returns all shards of this offset.

    The parents of an unlisted shard are unknown: the shard could be read before an ancestor that `start` names, and thus out of order.
    """
    give_up_at = clock.monotonic() + _LISTED_SECONDS
    while True:
        found = beginning(stream.lineage, start)
        # A shard in `left_out` may be known from the last event of one parent, but not from ListShards: wait for its other parent, too.
        parents = [parent for shard in found.left_out for parent in stream.lineage[shard].parents]
        new = stream.lineage.too_new([*found.offset, *parents]) or ([] if start.named else found.left_out)
        if not new or not (found.left_out or start.named):
            return found
        if clock.monotonic() >= give_up_at:
            if found.left_out:
                return found
            raise StreamError(
                f"stream {stream.ref.name!r}: ListShards does not show {', '.join(new)} after {_LISTED_SECONDS:.0f} s, so the query's "
                "start is unknown",
                remedy="start it again",
            ).about(stream.ref.name)
        await clock.sleep(LIST_AGAIN_SECONDS)
        await stream.refresh(patient=True)


async def _from_leases(
    streams: Mapping[str, Stream], table: LeaseStore, lease_keys: LeaseKeys, clock: Clock
) -> tuple[dict[ShardKey, Position], Scan]:
    """Scan the lease table. Return the positions of streams with rows, and the scan. Raises LeaseTableError if a shard has no row."""
    scan = await table.scan()
    _refuse_foreign(scan, table, streams, lease_keys)
    _refuse_strays(scan, table, streams, lease_keys)
    positions: dict[ShardKey, Position] = {}
    parents: dict[ShardKey, frozenset[str]] = {}
    for shard, lease in lease_keys.by_shard(scan.leases).items():
        if shard.stream in streams and lease.position is not None:
            positions[shard], parents[shard] = lease.position, lease.parents
    passed = read_to_end(positions, {name: stream.lineage for name, stream in streams.items()}, parents)
    for name in dict.fromkeys(shard.stream for shard in passed):
        shown = [
            f"shard {shard.shard} ({positions[shard]}; {begun[-1]})"
            for shard, begun in passed.items()
            if shard.stream == name
        ]
        logger.warning(
            "stream %s: shards with earlier lease rows count as read to their end, because their descendants have begun: %s%s",
            name,
            ", ".join(shown[:_SHOWN]),
            f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "",
        )
    positions |= dict.fromkeys(passed, SHARD_END)
    waiting, too_far = _before(positions, streams, parents)
    for shard in waiting | too_far:
        # Ignore the rows of these shards, which other queries may have moved. Read the shards from their beginning, after their ancestors.
        del positions[shard]
    for name, rows in by_stream(positions).items():
        left_out = set((await _beginning(streams[name], ReadBound(TRIM_HORIZON, rows, ()), clock)).left_out)
        if (lineage := streams[name].lineage).lost(rows):
            # Do not reject shards whose parents were trimmed: the query reports the loss of the parents and then reads these shards.
            left_out -= lineage.with_descendants(
                each.shard_id
                for each in lineage.shards
                if each.shard_id not in rows and not all(parent in lineage for parent in each.parents)
            )
        if left_out:
            raise LeaseTableError(
                f"kinesis-efo option 'startingPosition' or 'newStreamPosition' is LEASES, but {table.label} has no readable row for "
                f"{', '.join(sorted(left_out))} of stream {name!r}{_unreadable(scan.unreadable)}, nor for a parent or child",
                remedy="Copy the row from the KCL application's table with `kinesis-efo leases import-kcl`, or give each shard its position in "
                "JSON; `kinesis-efo leases list` shows those in the table",
            ).about(name)
    return positions, scan


def _refuse_foreign(scan: Scan, table: LeaseStore, streams: Collection[str], lease_keys: LeaseKeys) -> None:
    """Raise an error if the key format or the checkpoint of a lease row shows that a KCL application wrote the row."""
    for shard, lease in sorted(lease_keys.by_shard(scan.leases).items()):
        foreign = lease.position is None or (lease.key != lease_keys.encode(shard) and not lease.ours)
        if shard.stream in streams and foreign:
            raise LeaseTableError(
                f"kinesis-efo option 'startingPosition' is LEASES, but row {lease.key} of {table.label} is a KCL application's: a query "
                "never uses a KCL's table",
                remedy="Give the application a table of its own, and copy the positions with "
                "`kinesis-efo leases import-kcl --from-table <the KCL's table>`",
            ).about(*shard)


def _refuse_strays(scan: Scan, table: LeaseStore, streams: Mapping[str, Stream], lease_keys: LeaseKeys) -> None:
    rows = lease_keys.by_shard(scan.leases)
    for name, stream in streams.items():
        if what := strays((row for shard, row in rows.items() if shard.stream == name), stream.identity):
            raise StreamReplacedError(
                f"kinesis-efo option 'startingPosition' is LEASES, but in {table.label} {what}",
                remedy="Start at TRIM_HORIZON to read all records of the current stream, or first reset its checkpoints with "
                "`kinesis-efo leases reset --to TRIM_HORIZON`",
            ).about(name)


def _before(
    positions: Mapping[ShardKey, Position],
    streams: Mapping[str, Stream],
    parents: Mapping[ShardKey, Collection[str]],
) -> tuple[set[ShardKey], set[ShardKey]]:
    """Find the shards that have an unfinished ancestor in `positions`, and return them in two sets.

    Shards of the first set are at their beginning and can wait for their ancestors: a KCL application creates the rows of children before
    it reads them. Shards of the second set were already read further: they and their ancestors cannot be read in order.
    """
    waiting: set[ShardKey] = set()
    too_far: set[ShardKey] = set()
    for key, position in positions.items():
        shard = streams[key.stream].shard(key.shard)
        created = created_at(shard) if shard is not None else None
        before = streams[key.stream].lineage.ancestors((key.shard,)).union(parents.get(key, ()))
        others = [positions.get(ShardKey(key.stream, parent), SHARD_END) for parent in before]
        # Do not wait for an ancestor whose position is a time after this shard's creation: it has no more records to read.
        if not position.is_end and not all(each.is_end or _is_later(each, created) for each in others):
            at_beginning = position == TRIM_HORIZON or _is_later(position, created) is False
            (waiting if at_beginning else too_far).add(key)
    return waiting, too_far


def _is_later(position: Position, created: float | None) -> bool | None:
    """Whether a position is a time after a shard's creation; None if the position is not a time, or if `created` is unknown."""
    if position.kind is not PositionKind.AT_TIMESTAMP or created is None:
        return None
    return position.value / 1000 >= created + 1


def _unreadable(reasons: Mapping[str, str]) -> str:
    return f" ({'; '.join(list(reasons.values())[:3])})" if reasons else ""
