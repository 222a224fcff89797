"""The messages of calls to fetchers, and to the planner of a run, with the client of the latter.

Tasks call both. A fetcher of another process has two calls to the planner under way: `work` waits for what it is to do, `report` tells
what has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.connection import Connection
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.kinesis.events import ChildShard
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position, ShardKey, ShardRange

TOGETHER_BYTES: Final = 1 << 20
"""Payloads are sent together, about this many bytes at a time: what fits into the processor's cache is fastest."""

GET: Final = "get"
WORK: Final = "work"
REPORT: Final = "report"
WHERE: Final = "where"
_ANSWER_SECONDS: Final = 10.0


class GetTicket(msgspec.Struct, frozen=True):
    """Asks for the events that cover some ranges, one after the other. A task makes one call for all of them: each has its price.

    Attributes:
        ranges: The ranges.
        query: The name of the query among those of its run.
    """

    ranges: Sequence[ShardRange]
    query: str = ""


class RangeLabel(msgspec.Struct, frozen=True, array_like=True):
    """Tells which range payloads of a `get` belong to.

    Attributes:
        index: Index of the range in the ticket.
        hash_range: First and last hash key of the shard, if the fetcher knows them.
    """

    index: int
    hash_range: tuple[int, int] | None


class WorkRequest(msgspec.Struct, frozen=True):
    """A fetcher asks what it is to do.

    Attributes:
        name: Made up by the fetcher; no two are alike.
        place: Which of the run's places it fills; a second attempt at a place has the same.
        host: The name of its host, for messages.
        address: How tasks reach it.
        budget: Bytes that it may buffer.
        revision: The revision of its shards that it follows: it has closed the others. 0: it reads nothing.
        done: The number of the last answer whose `done` it has followed.
        wait: Seconds to wait if there is nothing new.
        reading: Whether a task reads a range from it at this moment.
    """

    name: str
    place: int
    host: str
    address: FetcherAddress
    budget: int
    revision: int
    done: int
    wait: float
    reading: bool = False


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """A shard that a fetcher may read.

    Attributes:
        key: The shard.
        start: Where to begin.
        read_until: What arrived before this time lies at or before `start`, epoch seconds, if that is known.
    """

    key: ShardKey
    start: Position
    read_until: float | None = None


class Work(msgspec.Struct, frozen=True):
    """The answer to a request for work.

    Attributes:
        standing: `working`; `standby`: another attempt has its place, ask again; `unknown`: it counted as dead, so close everything
            and ask as a new one; `over`: the query has ended.
        revision: Revision of `shards`.
        shards: All that it may read; None if the fetcher has the newest revision.
        seconds: For how long each stream may be read, counted from before the request was sent.
        number: Number of this answer.
        done: Positions that will not be asked for again; those that have changed since the answer that the request names.
        shared: Whether several queries share the shards: then none is begun anew for a task.
        streams: The streams of `shards`, by logical name: a query that has joined may have brought some.
    """

    standing: str
    revision: int = 0
    shards: list[Shard] | None = None
    seconds: dict[str, float] = {}
    number: int = 0
    done: list[tuple[ShardKey, Position]] = []
    shared: bool = False
    streams: dict[str, StreamRef] = {}


class ShardNews(msgspec.Struct, frozen=True):
    """What has happened in one shard since the last report.

    Attributes:
        key: The shard.
        start: Where its buffer begins, if that began anew: what was told of the shard before is void.
        events: The events since.
        behind: How far reading lags, in milliseconds.
        unseen: What had arrived in the stream so long ago, seconds, lies before the end of the last event, if that is known.
        read_until: What arrived before this time lies before the end of the last event, epoch seconds, if that is known.
        children: Its children, if it has ended.
        subscription: What happened to its subscriptions.
        tip: Where it ended when fetching began there, if that is known.
        quiet: For how long it is believed that nothing more is there, seconds; 0 if that is not believed.
        lowest: The lowest number that its buffer is known to cover, if it begins at a time.
        before_end: Where the query is to end in the shard, and the number of the last record up to there, once that is seen.
    """

    key: ShardKey
    start: Position | None = None
    events: Sequence[BufferedEvent] = ()
    behind: int | None = None
    unseen: float | None = None
    read_until: float | None = None
    children: list[ChildShard] = []
    subscription: Subscription | None = None
    tip: Position | None = None
    quiet: float = 0.0
    lowest: int | None = None
    before_end: tuple[Position, int] | None = None


class Report(msgspec.Struct, frozen=True):
    """A fetcher tells what has arrived.

    Attributes:
        name: Its name.
        number: One more than in the report before; 1 begins anew: the report tells everything.
        shards: What has happened.
        failure: What keeps it from reading, packed by `pack_error`; empty if nothing does.
    """

    name: str
    number: int
    shards: list[ShardNews] = []
    failure: bytes = b""


class ReportReply(msgspec.Struct, frozen=True):
    """The answer to a report.

    Attributes:
        known: Whether the planner knows the fetcher as alive.
        again: Whether a report is missing: begin anew.
        revision: The newest revision of its shards.
        pause: Seconds, from one report to the next, that leave the planner time for the other fetchers.
    """

    known: bool
    again: bool = False
    revision: int = 0
    pause: float = 0.0


class WhereRequest(msgspec.Struct, frozen=True):
    """A task asks who reads some shards now.

    Attributes:
        shards: The shards.
        wait: Seconds to wait until all of them are read by somebody.
        query: The name of the query among those of its run.
        after: Where its ranges begin, in the order of the shards.
    """

    shards: list[ShardKey]
    wait: float
    query: str
    after: list[Position]

    @classmethod
    def of(cls, ranges: Sequence[ShardRange], wait: float, query: str = "") -> WhereRequest:
        """The question for some ranges of a query."""
        return cls([wanted.key for wanted in ranges], wait, query, [wanted.after for wanted in ranges])


class WhereReply(msgspec.Struct, frozen=True):
    """Who reads some shards.

    Attributes:
        fetchers: The fetchers, in the order of the shards; None: nobody yet.
        there: The number of fetchers that are there, whatever they read.
    """

    fetchers: list[FetcherAddress | None]
    there: int


class PlannerClient(Connection):
    """One connection to the planner of a run; see `Connection`."""

    service = "planner"

    def work(self, request: WorkRequest) -> Work:
        """Ask what to do."""
        return self.action(WORK, request, Work, request.wait + _ANSWER_SECONDS)

    def report(self, report: Report) -> ReportReply:
        """Tell what has arrived."""
        return self.action(REPORT, report, ReportReply, _ANSWER_SECONDS)

    def where(self, ranges: Sequence[ShardRange], wait: float, query: str = "") -> WhereReply:
        """Ask which fetchers read some ranges now.

        Args:
            ranges: The ranges.
            wait: Seconds to wait until all of their shards have a fetcher.
            query: The name of the query among those of its run.
        """
        return self.ask_where(WhereRequest.of(ranges, wait, query))

    def ask_where(self, request: WhereRequest) -> WhereReply:
        """Pass on such a question of a task."""
        return self.action(WHERE, request, WhereReply, request.wait + _ANSWER_SECONDS)
