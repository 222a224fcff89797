"""What a stream reader asks of its run, which is another process.

A call is one message. A run answers the calls of a query one after the other, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.marks import Mark
from kinesis_efo.planner.ending import EndingState
from kinesis_efo.positions import Offset, ShardKey, ShardRange

T = TypeVar("T")


class Call(msgspec.Struct, Generic[T], frozen=True, tag_field="call", tag=str.lower):
    """A call to a query; the parameter is what it answers."""


class Begin(Call[Offset | None], frozen=True):
    """The query begins, or a run takes the place of one that is gone. Answers where a new query begins; None for others.

    Attributes:
        new: Whether the option says where it begins. If that has to wait for the lease, the answer is None at first: ask again.
        mark: For an offset that has none.
        wait: Seconds to wait for the lease.
        resumed: Up to where Spark's log had planned when the query went on; None once the query has asked for more.
        planned: The last micro-batch in Spark's log.
        kept: From where on its tasks may still read; None if they cannot.
        end: The last end that was told, or that Spark's log has.
        ending: How far the query had come with its end.
    """

    new: bool = False
    mark: Mark | None = None
    wait: float = 0.0
    resumed: Offset | None = None
    planned: Mark | None = None
    kept: Offset | None = None
    end: Offset | None = None
    ending: EndingState | None = None


class Served(NamedTuple):
    """A range that a task is to read.

    Attributes:
        wanted: The range.
        fetcher: Who reads its shard; None: nobody yet.
        bytes: What it occupies in the buffer; None if that is not known.
    """

    wanted: ShardRange
    fetcher: FetcherAddress | None
    bytes: int | None


class Planned(msgspec.Struct, frozen=True):
    """The ranges of a micro-batch that have records, as far as that is known. There may be thousands.

    Attributes:
        fetchers: Who reads shards.
        shards: Of each range, its shard, the number of its fetcher, and its bytes; None if these are not known.
        strict: Streams of which tasks leave out KPL aggregates with records of other shards.
    """

    fetchers: list[FetcherAddress | None]
    shards: list[tuple[ShardKey, int, int | None]]
    strict: list[str] = []

    @property
    def all_served(self) -> bool:
        """Whether each shard is read by somebody."""
        return None not in self.fetchers

    def served(self, ranges: Sequence[ShardRange]) -> list[Served]:
        """What is served, of all ranges of the micro-batch."""
        shards = {key: (self.fetchers[fetcher], size) for key, fetcher, size in self.shards}
        return [Served(wanted, *shards[wanted.key]) for wanted in ranges if wanted.key in shards]


class Step(msgspec.Struct, frozen=True):
    """How far the next micro-batch goes.

    Attributes:
        end: Its end; None if there is nothing to read.
        again: Whether something that the query waits for was not known in time: ask again.
        bytes: Bytes of its events; None if that is not known.
        data: About how much of them is the records' data; None likewise.
        behind: How far shards are behind their tips, milliseconds, as far as that is news.
        plan: Who serves it, if all of its shards are read by somebody: what `Plan` would answer.
        ending: How far the query has come with its end; None if that has not changed.
    """

    end: Offset | None = None
    again: bool = False
    bytes: int | None = 0
    data: int | None = 0
    behind: list[tuple[ShardKey, int | None]] = []
    plan: Planned | None = None
    ending: EndingState | None = None


class Next(Call[Step], frozen=True):
    """Ask how far the next micro-batch may go.

    Attributes:
        position: How far the query has come.
        wait: Seconds to wait if there is nothing to read.
        done: Up to where everything is processed, if that is news.
        hurry: Whether another source of the query has rows: a query that goes on does not wait, then.
        once: Whether this micro-batch reads everything up to the tips.
        available_now: Whether the query ends at the tips as they are at its first call.
    """

    position: Offset
    wait: float
    done: Offset | None = None
    hurry: bool = False
    once: bool = False
    available_now: bool = False


class Plan(Call[Planned], frozen=True):
    """Ask who serves a micro-batch that Spark's log has.

    Tasks that begin before there are fetchers could take the cores that these need: ask again while nobody reads a shard.

    Attributes:
        begin: Its begin.
        end: Its end.
        wait: Seconds to wait until all shards are read by somebody.
        first: Whether it is the first one since the query started: a former run may have planned it long ago.
    """

    begin: Offset
    end: Offset
    wait: float
    first: bool = False


class Commit(Call[bool], frozen=True):
    """Note what a query has done that asks for no more. Answers whether its last micro-batch is done, as far as the driver says so.

    Attributes:
        last: The end of that micro-batch, which Spark's log has.
        done: Up to where everything is processed, if that is news.
        wait: Seconds to wait for the driver's word.
    """

    last: Mark | None = None
    done: Offset | None = None
    wait: float = 0.0


class Reading(Call[bool], frozen=True):
    """Ask whether a task reads a range at this moment; another query's counts, too."""


AnyCall = Begin | Next | Plan | Commit | Reading


def answer_type(call: Call[Any]) -> Any:
    """What a call answers."""
    return get_args(type(call).__orig_bases__[0])[0]  # type: ignore[attr-defined]
