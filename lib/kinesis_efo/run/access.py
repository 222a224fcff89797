"""The calls of a stream reader to its run, which is another process.

A call is one message. A run carries out the calls of a query one after the other, each once.
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
    """A call to a query; the type parameter is the type of its result."""


class Begin(Call[Offset | None], frozen=True):
    """Start a query in a run, or continue it in the next run. Returns the start offset of a new query, else None.

    Attributes:
        new: Whether the option decides where it starts. None is returned while the lease is not held: call again.
        mark: Given to offsets without a mark.
        wait: Seconds to wait for the lease.
        resumed: The last planned offset in Spark's log when the query started; None once it has called `Next`.
        planned: The last micro-batch in Spark's log.
        kept: The offset from which its tasks may still read; None if none can.
        end: The last end that the reader was given, or that is in Spark's log.
        ending: The state of the query's `Ending`.
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
    """A range that a task is to read.

    Attributes:
        wanted: The range.
        fetcher: The fetcher that reads its shard; None if there is none yet.
        bytes: Bytes of it in the buffer; None if unknown.
    """

    wanted: ShardRange
    fetcher: FetcherAddress | None
    bytes: int | None


class BatchPlan(msgspec.Struct, frozen=True):
    """The ranges of a micro-batch, possibly thousands, without those that are known to be empty.

    Attributes:
        fetchers: The fetchers, None for ranges that have none yet.
        shards: For each range its shard, the index of its fetcher, and its bytes (None if unknown).
        strict: Streams of which tasks leave out KPL aggregates with records of other shards.
    """

    fetchers: list[FetcherAddress | None]
    shards: list[tuple[ShardKey, int, int | None]]
    strict: list[str] = []

    @property
    def all_served(self) -> bool:
        """Whether each shard has a fetcher."""
        return None not in self.fetchers

    def served(self, ranges: Sequence[ShardRange]) -> list[TaskRange]:
        """The given ranges of the micro-batch that have records, with their fetchers."""
        shards = {key: (self.fetchers[fetcher], size) for key, fetcher, size in self.shards}
        return [TaskRange(wanted, *shards[wanted.key]) for wanted in ranges if wanted.key in shards]


class Step(msgspec.Struct, frozen=True):
    """How far the next micro-batch goes.

    Attributes:
        end: Its end; None if there is nothing to read.
        again: Something that the query waits for was not known in time: call again.
        bytes: Bytes of its events; None if unknown.
        data: Estimated bytes of the records' data in them; None if unknown.
        behind: Milliseconds by which shards are behind their tips, if changed.
        plan: The result of `Plan`, if all shards have a fetcher.
        ending: The state of the query's `Ending`, if changed.
    """

    end: Offset | None = None
    again: bool = False
    bytes: int | None = 0
    data: int | None = 0
    behind: list[tuple[ShardKey, int | None]] = []
    plan: BatchPlan | None = None
    ending: EndingState | None = None


class Next(Call[Step], frozen=True):
    """Ask how far the next micro-batch may go.

    Attributes:
        position: Where the micro-batch starts.
        wait: Seconds to wait if there is nothing to read.
        done: The end of what is processed, if changed.
        hurry: Do not wait: another source of the query has rows. Ignored if the query has an end.
        once: Whether this micro-batch reads everything up to the tips.
        available_now: Whether the query ends at the tips as they are at its first call.
    """

    position: Offset
    wait: float
    done: Offset | None = None
    hurry: bool = False
    once: bool = False
    available_now: bool = False


class Plan(Call[BatchPlan], frozen=True):
    """Ask which fetchers serve a micro-batch that is in Spark's log.

    Call again while a shard has no fetcher: tasks that start earlier could take the cores that the fetchers need.

    Attributes:
        begin: Its start.
        end: Its end.
        wait: Seconds to wait until all shards have a fetcher.
        first: Whether it is the first one since the query started: an earlier run may have planned it long ago.
    """

    begin: Offset
    end: Offset
    wait: float
    first: bool = False


class Commit(Call[bool], frozen=True):
    """Commit the last micro-batches of a query that is stopping. Returns whether the driver has reported the last one as done.

    Attributes:
        last: The end of that micro-batch in Spark's log.
        done: The end of what is processed, if changed.
        wait: Seconds to wait for the driver's report.
    """

    last: Mark | None = None
    done: Offset | None = None
    wait: float = 0.0


class Reading(Call[bool], frozen=True):
    """Ask whether a task, of any query, is reading a range."""


AnyCall = Begin | Next | Plan | Commit | Reading


def answer_type(call: Call[Any]) -> Any:
    """The type of a call's result."""
    return get_args(type(call).__orig_bases__[0])[0]  # type: ignore[attr-defined]
