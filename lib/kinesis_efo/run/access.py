"""The calls that a query's stream reader makes to the run in another process.

A run executes the calls of a query one after another, and each call only once. If the run dies, the stream reader sends its last call
again, to the run that replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.decisions.ending import EndingState
from kinesis_efo.positions import Mark, Offset, ShardKey, ShardRange

T = TypeVar("T")


class Call(msgspec.Struct, Generic[T], frozen=True, tag_field="call", tag=str.lower):
    """A call that a stream reader makes to its query in the run. The type parameter `T` is the type of the result."""


class Begin(Call[Offset | None], frozen=True):
    """Start a query in this run, or continue it after the previous run has ended.

    Returns the start offset of a new query, and None for a query that has a checkpoint. Also returns None if a new query starts at the
    positions in the lease table (`LEASES`), but its leases were not acquired within `wait` seconds: call again then.
    """

    new: bool = False  # Whether the query is new, so that `startingPosition` decides where it starts
    mark: Mark | None = None  # The first mark of a new query, or of a checkpoint that lacks a mark
    wait: float = 0.0
    # The last offset in Spark's log at the query's start, to be compared with the lease rows; None for a new query or after the comparison
    resumed: Offset | None = None
    planned: Mark | None = None  # The mark of the last micro-batch in Spark's log
    # Everything up to here is finished, but tasks may still read later records; None before the first `Next` or `Plan` call
    kept: Offset | None = None
    end: Offset | None = None  # The end of the last micro-batch that was planned or is in Spark's log
    ending: EndingState | None = None  # The previous run's `Ending` state, such as the query's end positions


class TaskRange(NamedTuple):
    """A range that a task reads, with the fetcher that serves it."""

    wanted: ShardRange
    fetcher: FetcherAddress | None  # The fetcher of the range's shard; None if the shard is not assigned
    bytes: int | None  # Size of the range in the buffer; None if unknown


class BatchPlan(msgspec.Struct, frozen=True):
    """The ranges of a micro-batch, in compact form since there may be thousands. Ranges known to have no records are left out."""

    fetchers: list[FetcherAddress | None]  # Distinct fetcher addresses; includes None if a range is not assigned yet
    # For each range: its shard, the index of its fetcher in `fetchers`, and its bytes in the buffer (None if unknown)
    shards: list[tuple[ShardKey, int, int | None]]
    # The first and last hash key of each shard in which tasks drop aggregated (KPL) records that belong to other shards
    hash_ranges: list[tuple[ShardKey, tuple[int, int]]] = []

    @property
    def all_served(self) -> bool:
        """Whether each range is assigned to a fetcher."""
        return None not in self.fetchers

    def served(self, ranges: Sequence[ShardRange]) -> list[TaskRange]:
        """Return a `TaskRange` for each of the given ranges that is in the plan. The other ranges have no records."""
        shards = {key: (self.fetchers[fetcher], size) for key, fetcher, size in self.shards}
        return [TaskRange(wanted, *shards[wanted.key]) for wanted in ranges if wanted.key in shards]


class Step(msgspec.Struct, frozen=True):
    """The reply to `Next`: the end of the next micro-batch, if there is one."""

    end: Offset | None = None  # None if there is nothing to read
    again: bool = False  # Whether to call again: the run awaits a lease or records, or searches for the query's end
    bytes: int | None = 0  # Bytes of the micro-batch's events; None if unknown
    data: int | None = 0  # Estimated bytes of data in the micro-batch's records; None if unknown
    behind: list[tuple[ShardKey, int | None]] = []  # Shards whose lag has changed, with the lag in ms (None if unknown)
    plan: BatchPlan | None = None  # The plan, which saves a `Plan` call; None while a shard is without a fetcher
    ending: EndingState | None = None  # `Ending` state, such as end positions; None if unchanged


class Next(Call[Step], frozen=True):
    """Request the end of the next micro-batch, which begins at `position`. Waits at most `wait` seconds for something to read."""

    position: Offset  # Everything up to this offset is processed
    wait: float
    hurry: bool = False  # Whether to return at once: another source has rows. Ignored once the query's end is known
    once: bool = False  # Trigger.Once: read up to the tips of all shards
    available_now: bool = False  # Trigger.AvailableNow: the query ends at the tips that its first `Next` call finds


class Plan(Call[BatchPlan], frozen=True):
    """Request the fetchers for a micro-batch in Spark's log. Waits up to `wait` seconds for all its shards to be assigned.

    While shards are unassigned, do not start tasks but call again: the tasks could occupy the cores that fetchers need. Set `first` for the
    first micro-batch after the query's start, which is checked for lost records: an earlier run may have planned it long ago.
    """

    begin: Offset
    end: Offset
    wait: float
    first: bool = False


class Logged(Call[bool], frozen=True):
    """Report the mark of the last micro-batch in Spark's log. Waits up to `wait` seconds for it to finish; returns whether it has."""

    mark: Mark
    wait: float = 0.0


class Reading(Call[bool], frozen=True):
    """Request whether a task of any query is currently reading records."""


AnyCall = Begin | Next | Plan | Logged | Reading


def answer_type(call: Call[Any]) -> Any:
    return get_args(type(call).__orig_bases__[0])[0]  # type: ignore[attr-defined]
