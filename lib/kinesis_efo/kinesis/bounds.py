"""Validates the start and end positions of queries and batch reads against a stream's shards and Kinesis' clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from math import inf

from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.decisions.losses import time_of
from kinesis_efo.decisions.quiet import FUTURE_SECONDS
from kinesis_efo.errors import ConfigurationError, ManifestError
from kinesis_efo.options import Bounds


def check_streams(option: str, bounds: Bounds, streams: Collection[str], origin: str = "") -> None:
    """Raise ManifestError if an option names a stream not in `streams`. `origin` is the source of `streams`, as in " (from m.json)"."""
    if unknown := sorted(bounds.names.difference(streams)):
        raise ManifestError(
            f"kinesis-efo option {option!r} names {', '.join(map(repr, unknown))}, but the query reads "
            f"{', '.join(map(repr, sorted(streams)))}{origin}"
        )


def check_ends(where: str, name: str, ends: Bounds, stream: str, shards: Iterable[Shard], now: float) -> None:
    """Raise ConfigurationError if an end position names an unlisted shard, is the `SHARD_END` of an open shard, or is in the future.

    `where` names the stream, and `name` the option or argument, in messages. `now` is an upper bound of Kinesis' time, epoch seconds.
    """
    known = {shard.shard_id: shard for shard in shards}
    named = ends.named(stream)
    for shard_id, end in named.items():
        if shard_id not in known:
            raise not_listed(where, "endingPosition", shard_id, known)
        if end is not None and end.is_end and known[shard_id].last is None:
            raise ConfigurationError(
                f"{where}: kinesis-efo option 'endingPosition' names the end of shard {shard_id}, which is still open: LATEST is its tip"
            )
    for shard_id, end in {"": ends.of(stream), **named}.items():
        when = None if end is None else time_of(shard_id, end, inf)
        if when is not None and when > now + FUTURE_SECONDS:
            of = "" if end is None or end.sequence_number is None else f" of shard {shard_id}"
            raise in_future(where, name, f"{end}{of}", when, now)


def in_future(where: str, name: str, position: str, when: float, now: float) -> ConfigurationError:
    """Create the error for an end time `when` that is after `now` (epoch seconds): a read with an end does not wait for new records."""
    return ConfigurationError(
        f"{where}: {name} must not be in the future: {position} is {instant(when)}, and Kinesis' time is {instant(now)}. A read with an "
        "end does not wait for records; use spark.readStream without an end to wait"
    )


def not_listed(where: str, option: str, shard_id: str, shards: Iterable[str]) -> ConfigurationError:
    """Create the error for a shard that an option names but that is not among `shards`."""
    known = sorted(shards)
    few = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return ConfigurationError(
        f"{where}: kinesis-efo option {option!r} names shard {shard_id!r}, which is not listed (anymore, or yet: the list may be a minute "
        f"old); listed are {few}"
    )


def instant(epoch: float) -> str:
    """Format a time (epoch seconds) for a message."""
    # Cannot overflow: times from options were validated, and a sequence number has only 36 bits for the seconds.
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
