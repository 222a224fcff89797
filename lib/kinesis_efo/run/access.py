"""The calls from a query's stream reader to the run, which is another process.

A call is one message. The run executes the calls of a query one after another, each exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.decisions.ending import EndingState
from kinesis_efo.marks import Mark
from kinesis_efo.positions import Offset, ShardKey, ShardRange

T = TypeVar("T")


class Call(msgspec.Struct, Generic[T], frozen=True, tag_field="call", tag=str.lower):
    """A call of a stream reader to its query in the run. The type parameter is the result's type."""


class Begin(Call[Offset | None], frozen=True):
    """Start a query in a run, or continue it in the next run. Returns the start offset of a new query, else None.

    Also returns None if the required leases are not acquired within `wait` seconds; then call again.
    """

    new: bool = False  # `startingPosition` decides where the query starts
    mark: Mark | None = None  # For offsets without a mark
    wait: float = 0.0
    # The last planned offset in Spark's log at the query's start; None if the query is new or has called `Next`
    resumed: Offset | None = None
    planned: Mark | None = None  # The mark of the last micro-batch in the log
    kept: Offset | None = None  # Tasks may read from here on; None before the first micro-batch
    end: Offset | None = None  # The end of the last micro-batch that was planned or is in the log
    ending: EndingState | None = None  # The state of `Ending` in the previous run


class TaskRange(NamedTuple):
    """A range for a task, the fetcher of its shard (None if unassigned), and the range's bytes in the buffer (None if unknown)."""

    wanted: ShardRange
    fetcher: FetcherAddress | None
    bytes: int | None


class BatchPlan(msgspec.Struct, frozen=True):
    """The ranges of a micro-batch, possibly thousands, except those planned without records."""

    fetchers: list[FetcherAddress | None]  # Each address once; None if some ranges are not assigned to a fetcher yet
    # For each range: shard, index in `fetchers`, and bytes in the buffer (None if unknown)
    shards: list[tuple[ShardKey, int, int | None]]
    # The first and last hash key of each shard in which tasks drop aggregates that have records of other shards
    hash_ranges: list[tuple[ShardKey, tuple[int, int]]] = []

    @property
    def all_served(self) -> bool:
        """Whether each range is assigned to a fetcher."""
        return None not in self.fetchers

    def served(self, ranges: Sequence[ShardRange]) -> list[TaskRange]:
        """Return the given ranges with their fetchers, without empty ranges."""
        shards = {key: (self.fetchers[fetcher], size) for key, fetcher, size in self.shards}
        return [TaskRange(wanted, *shards[wanted.key]) for wanted in ranges if wanted.key in shards]


class Step(msgspec.Struct, frozen=True):
    """How far the next micro-batch goes."""

    end: Offset | None = None  # None if there is nothing to read
    again: bool = False  # Call again: what the query waits for did not arrive in time
    bytes: int | None = 0  # Size of the events; None if unknown
    data: int | None = 0  # Estimated size of the data in their records; None if unknown
    behind: list[tuple[ShardKey, int | None]] = []  # Changed lags of shards, in milliseconds
    plan: BatchPlan | None = None  # The result of `Plan`, if all shards are assigned to fetchers
    ending: EndingState | None = None  # The new state of `Ending`, if changed


class Next(Call[Step], frozen=True):
    """Request how far a micro-batch from `position` may go. Waits `wait` seconds if there is nothing to read."""

    position: Offset  # Everything up to here is processed
    wait: float
    hurry: bool = False  # Do not wait: another source has rows. Ignored if the query has an end
    once: bool = False  # Read up to the tips
    available_now: bool = False  # The query ends at the tips of its first `Next`


class Plan(Call[BatchPlan], frozen=True):
    """Request the fetchers of a micro-batch in Spark's log. Waits `wait` seconds until all its shards are assigned.

    Call again while shards are unassigned: tasks that start earlier could occupy the cores that the fetchers need. `first`: this is the first
    micro-batch since the query started, which an earlier run may have planned long ago.
    """

    begin: Offset
    end: Offset
    wait: float
    first: bool = False


class Logged(Call[bool], frozen=True):
    """Report the mark of the last micro-batch in Spark's log. Returns whether it is finished.

    Waits `wait` seconds for the driver's report.
    """

    mark: Mark
    wait: float = 0.0


class Reading(Call[bool], frozen=True):
    """Request whether a task of any query is reading a range."""


AnyCall = Begin | Next | Plan | Logged | Reading


def answer_type(call: Call[Any]) -> Any:
    """Return the type of a call's result."""
    return get_args(type(call).__orig_bases__[0])[0]  # type: ignore[attr-defined]
