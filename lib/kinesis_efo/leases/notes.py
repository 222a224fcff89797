"""What a run stores for later runs in its lease rows: whether Kinesis ignores a stream's partition keys, and each checkpoint's newest mark.

All of this is written when a lease is renewed or released. A later run compares the marks with a query's checkpoint to detect that the
checkpoint was reset, for example from a backup. Checkpoints of early library versions have no marks. For such checkpoints, the run compares
positions with the shards' lease rows. This is less reliable, because another query may have moved these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import floor
from typing import Final

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.clock import Clock
from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import SHARD_END, Mark, Offset, Position, PositionKind, ShardKey

KEPT: Final = 16
"""Maximum number of checkpoints whose marks (`Mark`) one lease row stores. A mark has about 40 bytes, and DynamoDB bills writes per
1 KB. The mark of a deleted checkpoint stays until newer marks replace it."""

LEFT_OUT: Final = "a file sink silently skips each micro-batch whose number it already has"
"""Why records may be missing from the output after a checkpoint was reset or deleted; part of messages."""

CAUSES: Final = (
    "it was restored from a backup, is a copy of another query's, or Spark has left offsets out of it (option "
    "asyncProgressTrackingEnabled)"
)
"""Why a checkpoint may be behind its recorded mark; part of messages. Spark rejects the option for sinks that skip micro-batches."""


class RunNotes:
    """What a run stores in its lease rows for later runs. `stream` arguments are logical names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Streams in which Kinesis ignores partition keys when it distributes records over shards, detected by this or an earlier run
        self.distributed: Final[set[str]] = set()
        self._found: dict[str, tuple[CheckpointMark, ...]] = {}
        self._planned: dict[str, tuple[Mark, int]] = {}

    def load(self, stream: str, row: Lease) -> None:
        """Load what earlier runs stored in `row`, the lease row of a stream whose lease was just acquired."""
        if row.distributed:
            self.distributed.add(stream)
        self._found[stream] = row.marks

    def reached(self, stream: str) -> tuple[CheckpointMark, ...]:
        """Return each checkpoint's newest mark, which this run has recorded or found in the stream's lease row."""
        return self._with_recorded(self._found.get(stream, ()))

    def record_mark(self, mark: Mark) -> None:
        """Record a checkpoint's newest mark; it is written with the next lease renewal. Thread-safe."""
        before = self._planned.get(mark.checkpoint)
        if before is None or before[0].moved < mark.moved:  # ignore marks of an older copy of the checkpoint
            self._planned[mark.checkpoint] = mark, round(self._clock.time() * 1000)

    def stored_in(self, stream: str, row: Lease) -> Lease:
        """Return a stream's lease row with the attributes that this run stores for later runs."""
        distributed = row.distributed or stream in self.distributed
        return replace(row, distributed=distributed, marks=self._with_recorded(row.marks))

    def _with_recorded(self, marks: tuple[CheckpointMark, ...]) -> tuple[CheckpointMark, ...]:
        for mark, at in list(self._planned.values()):
            marks = add_mark(marks, mark, at)
        return marks


def add_mark(known: tuple[CheckpointMark, ...], mark: Mark, at: int) -> tuple[CheckpointMark, ...]:
    """Add a mark recorded at `at` (epoch milliseconds), if it is newer than the checkpoint's mark in `known`. Returns the newest first."""
    before = furthest(known, mark.checkpoint)
    if before is not None and before.mark.moved >= mark.moved:
        return known
    others = (each for each in known if each.mark.checkpoint != mark.checkpoint)
    newest = sorted((CheckpointMark(mark, at), *others), key=lambda each: each.at, reverse=True)
    return tuple(newest[:KEPT])


def furthest(known: tuple[CheckpointMark, ...], checkpoint: str) -> CheckpointMark | None:
    """Return the mark of a checkpoint from `known`; None if `known` lacks one for this checkpoint."""
    return next((each for each in known if each.mark.checkpoint == checkpoint), None)


def describe_reset(reached: tuple[CheckpointMark, ...], mark: Mark) -> str | None:
    """Describe how far a checkpoint with the newest mark `mark` is behind its recorded mark in `reached`; None if it is not behind.

    A mark is recorded only after Spark has written it to the checkpoint, so a checkpoint that is behind was reset. With Spark's option
    `asyncProgressTrackingEnabled`, which a run cannot detect, offsets may be missing from the checkpoint, too.
    """
    before = furthest(reached, mark.checkpoint)
    if before is None or before.mark.moved <= mark.moved:
        return None
    missing = before.mark.moved - mark.moved
    at = datetime.fromtimestamp(before.at / 1000, UTC)
    return f"by {missing} {'micro-batch' if missing == 1 else 'micro-batches'}, at {at:%Y-%m-%d %H:%M:%S} UTC"


def restored(
    offset: Offset, stream: str, rows: Mapping[ShardKey, Lease], reached: tuple[CheckpointMark, ...]
) -> str | None:
    """Return the warning for a query whose checkpoint was probably reset; None if nothing indicates a reset.

    Args:
        offset: The query's last planned offset.
        rows: The lease rows of the stream's shards, to compare with `offset` if it lacks a mark.
        reached: The newest mark of each checkpoint, to compare with the mark of `offset`, if any.
    """
    if offset.mark is not None:
        if (said := describe_reset(reached, offset.mark)) is None:
            return None
        return (
            f"the query's checkpoint had been further {said}: {CAUSES}. The records since then are read again; but {LEFT_OUT}: "
            "stop this query, and give it a new output directory. If the output was restored together with the checkpoint, or the sink "
            "accepts repeated records, nothing needs to be done"
        )
    known = {key: offset[key] for key in rows if key.stream == stream and key in offset}
    ahead = sorted(key for key, position in known.items() if is_ahead(rows[key], position))
    if not ahead:
        return None
    first = ahead[0]
    return (
        f"stream {stream}: the lease table is further than the query's checkpoint in {len(ahead)} of {len(known)} shards ({first.shard} "
        f"was read up to {rows[first].reached}, in the checkpoint up to {known[first]}). If the checkpoint was restored from a backup, "
        f"the records since then are read again; but {LEFT_OUT}: stop this query, and give it a new output directory. If another query of "
        "this application, with a separate checkpoint, has read meanwhile, nothing needs to be done"
    )


def new_query_warning(stream: str, rows: Mapping[ShardKey, Lease]) -> str | None:
    """Return the warning for a new query if the lease rows show that the application has read the stream before; None otherwise."""
    read = {key: row for key, row in sorted(rows.items()) if row.has_begun}
    if not read:
        return None
    key = next(iter(read))
    open_until = [row.read_until for row in read.values() if row.reached != SHARD_END]
    times = [at for at in open_until if at is not None]
    since = "TRIM_HORIZON"
    if times and len(times) == len(open_until):
        since = f"AT_TIMESTAMP:{datetime.fromtimestamp(floor(min(times)), UTC):%Y-%m-%dT%H:%M:%SZ}"
    return (
        f"stream {stream}: this query is new, without a checkpoint, but the lease table says that the application has read {len(read)} of "
        f"the stream's shards before ({key.shard} up to {read[key].reached}). If the checkpoint was deleted or moved, the records between "
        f"there and this query's start are skipped or repeated, and {LEFT_OUT} (in the _spark_metadata of its output): stop this query, "
        f"delete its new checkpoint, and start with a new output directory and startingPosition={since}. With startingPosition=LEASES, a "
        "new query continues there by itself, if no other query has moved the lease table on. If this query has a separate output, "
        "nothing needs to be done"
    )


def strays(rows: Iterable[Lease], present: StreamIdentity) -> str | None:
    """Describe, for a message, the rows that certainly belong to a stream other than `present`; None if there are none.

    Shard ids start at 0 in each stream, so rows of a deleted stream can have the same keys as rows of the present stream.
    """
    found = sorted((row for row in rows if row.is_of_another(present)), key=lambda row: row.key)
    if not found:
        return None
    first, more = found[0], len(found) - 1
    assert first.stream is not None
    created_again = first.stream.arn == present.arn
    return (
        f"checkpoint {first.key}{f' (and {more} more)' if more else ''} is from another stream: {first.stream}. The stream is now "
        f"{present}: "
        + ("it was deleted and created again since" if created_again else "the application read another stream before")
    )


def is_ahead(row: Lease, position: Position) -> bool:
    """Whether a shard's lease row is certainly ahead of a position. False if either is only a start position."""
    reached = row.reached
    if reached is None or not row.has_begun or position.kind not in (PositionKind.AFTER, PositionKind.SHARD_END):
        return False
    return reached != position and reached.reaches(position)
