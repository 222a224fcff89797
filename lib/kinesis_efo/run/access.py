"""The calls that a query's stream reader makes to the run, which is another process.

A call is one message. The run carries out the calls of a query one after the other, and each of them only once.
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
    """A call of a stream reader to its query in the run. The type parameter is the type of the result."""


class Begin(Call[Offset | None], frozen=True):
    """Start a query in a run, or continue it in the next run. Returns the start offset of a new query, else None.

    `new`: whether `startingPosition` decides where the query starts. If the leases that this needs are not held after `wait` seconds, the
    result is None: call again. `mark` is for offsets that have none. `resumed` is the last planned offset in Spark's log at the start of
    the query; None if it is new, or has called `Next`. `planned` is the mark of the last micro-batch in the log; `end`, the end of the last
    one planned or in the log. Tasks may read from `kept`; None before the first micro-batch. `ending` is the state of `Ending` in the run
    before.
    """

    new: bool = False
    mark: Mark | None = None
    wait: float = 0.0
    resumed: Offset | None = None
    planned: Mark | None = None
    kept: Offset | None = None
    end: Offset | None = None
    ending: EndingState | None = None


class TaskRange(NamedTuple):
    """A range that a task is to read, the fetcher of its shard if it has one, and the range's bytes in the buffer if known."""

    wanted: ShardRange
    fetcher: FetcherAddress | None
    bytes: int | None


class BatchPlan(msgspec.Struct, frozen=True):
    """The ranges of a micro-batch, possibly thousands, without those that are known to be empty.

    `fetchers` has each address once, and None if a range has no fetcher yet. `shards` has for each range its shard, the index of its
    fetcher in `fetchers`, and its bytes in the buffer, if known. `hash_ranges` has the first and last hash key of each shard of which tasks
    leave out KPL aggregates whose records have hash keys of other shards.
    """

    fetchers: list[FetcherAddress | None]
    shards: list[tuple[ShardKey, int, int | None]]
    hash_ranges: list[tuple[ShardKey, tuple[int, int]]] = []

    @property
    def all_served(self) -> bool:
        """Whether each range has a fetcher."""
        return None not in self.fetchers

    def served(self, ranges: Sequence[ShardRange]) -> list[TaskRange]:
        """The given ranges without those that are known to be empty, each with its fetcher."""
        shards = {key: (self.fetchers[fetcher], size) for key, fetcher, size in self.shards}
        return [TaskRange(wanted, *shards[wanted.key]) for wanted in ranges if wanted.key in shards]


class Step(msgspec.Struct, frozen=True):
    """How far the next micro-batch goes: up to `end`, or None if there is nothing to read.

    `again`: whether to call again, because something that the query waits for was not known in time. `bytes` is the size of the events, and
    `data` the estimated size of the data in their records; None if unknown. `behind` has the milliseconds by which a shard is behind its
    tip, where this has changed. `plan` is what `Plan` would return, if all shards have a fetcher. `ending` is given if it has changed.
    """

    end: Offset | None = None
    again: bool = False
    bytes: int | None = 0
    data: int | None = 0
    behind: list[tuple[ShardKey, int | None]] = []
    plan: BatchPlan | None = None
    ending: EndingState | None = None


class Next(Call[Step], frozen=True):
    """Ask how far a micro-batch that starts at `position` may go. Waits `wait` seconds if there is nothing to read.

    Everything up to `position` is processed. `hurry`: do not wait, because another source has rows; ignored if the query has an end.
    `once`: read up to the tips. `available_now`: the query ends at the tips of its first `Next`.
    """

    position: Offset
    wait: float
    hurry: bool = False
    once: bool = False
    available_now: bool = False


class Plan(Call[BatchPlan], frozen=True):
    """Ask which fetchers serve a micro-batch that is in Spark's log. Waits `wait` seconds until all its shards have a fetcher.

    Call again while a shard has no fetcher: tasks that start earlier could take the cores that the fetchers need. `first`: whether this
    is the first micro-batch since the query started, which an earlier run may have planned long ago.
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
    """Ask whether a task of any query is reading a range."""


AnyCall = Begin | Next | Plan | Logged | Reading


def answer_type(call: Call[Any]) -> Any:
    """The type of a call's result."""
    return get_args(type(call).__orig_bases__[0])[0]  # type: ignore[attr-defined]
