"""The messages of a run with remote fetchers, and the client with which fetchers and tasks call the run.

A remote fetcher makes up to two calls to the run at a time: `work` waits for work, `report` sends what has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.connection import Connection
from kinesis_efo.decisions.losses import NO_FACTS, Facts
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import Position, ShardKey, ShardRange
from kinesis_efo.records.events import ChildShard

TOGETHER_BYTES: Final = 1 << 20
"""Approximate bytes of payloads that are sent together. A size that fits into the processor's cache is fastest."""

GET: Final = "get"
WORK: Final = "work"
REPORT: Final = "report"
WHERE: Final = "where"
_ANSWER_SECONDS: Final = 10.0


class GetTicket(msgspec.Struct, frozen=True):
    """Requests the events that cover some ranges of a query, in order. A task makes one call for all of its ranges."""

    ranges: Sequence[ShardRange]
    query: str = ""


class RowKey(NamedTuple):
    """The key of a buffer. `query` is set if the buffer is for one query that catches up; otherwise, all queries share it."""

    query: str | None
    shard: ShardKey

    @property
    def is_shared(self) -> bool:
        return self.query is None

    def __str__(self) -> str:
        return str(self.shard)


class Order(msgspec.Struct, frozen=True, array_like=True):
    """The run's instruction to a fetcher: which events of a shard to buffer."""

    version: int  # Changes whenever the buffer starts over
    start: Position | None  # Where the buffer begins; None in a message if an earlier message with this version had it
    keep: Position  # Drop all events before this position
    kept: list[tuple[str, Position]] = []  # With several queries, the position from which each query needs events
    known: Facts = NO_FACTS  # What else is known about `start`


class WorkRequest(msgspec.Struct, frozen=True):
    """A fetcher requests work."""

    name: str  # A unique name, chosen by the fetcher
    place: int  # The fetcher's number in the run; equal for all attempts of a Spark task
    host: str  # The host's name, for messages
    address: FetcherAddress
    budget: int  # Bytes that it may buffer
    revision: int  # The last revision of `Work.shards` that the fetcher has applied; 0 before the first
    done: int  # The number of the last reply whose orders the fetcher has applied
    wait: float  # Seconds to wait for changes
    reading: bool = False  # A task is reading from the fetcher
    version: str = ""  # The version of the fetcher's library


class Work(msgspec.Struct, frozen=True):
    """The reply to a request for work.

    Attributes:
        standing: `working`; `standby`: another attempt of its Spark task is alive, retry; `unknown`: the fetcher counted as dead, so close
            everything and register as a new fetcher; `over`: the run has ended.
        revision: The revision of `shards`.
        shards: All shards of the fetcher; None if the fetcher has the newest revision.
        seconds: Seconds for which each stream may be read, counted from before the request was sent.
        number: The number of this reply.
        orders: The orders for its shards that have changed since reply `done` of the request.
        streams: The streams of `shards`, by logical name; a client may have added some.
    """

    standing: str
    revision: int = 0
    shards: list[ShardKey] | None = None
    seconds: dict[str, float] = {}
    number: int = 0
    orders: list[tuple[ShardKey, Order]] = []
    streams: dict[str, StreamRef] = {}


class ShardNews(msgspec.Struct, frozen=True):
    """What has happened in one shard since the last report.

    Attributes:
        version: The version of the order that the fetcher follows.
        start: The start of the shard's buffer, if the buffer is new; earlier reports of the shard are then void.
        low: Where the buffered events begin, if the fetcher has dropped more than the order allowed; else None.
        waits: There is no space for the next event.
        behind: Milliseconds by which the last event was behind the tip; None before the first event.
        unseen: An upper bound for the age, in seconds, of records after the last event; None if unknown.
        read_until: The low watermark after the last event, epoch seconds; None if unknown.
        lost: Records after the last event were trimmed, as options accept. `read_until` ignores them, so other readers must not use it.
        children: The shard's children, if the shard has ended.
        quiet: Seconds for which the shard has apparently been at the tip; 0 if it may have more records.
        lowest: The buffer has everything after this sequence number, if it starts at a time or at the trim horizon.
        before_end: The query's end in the shard, and the sequence number of the last record up to that end; None if unknown.
    """

    key: ShardKey
    version: int = 0
    start: Position | None = None
    low: Position | None = None
    waits: bool = False
    events: Sequence[BufferedEvent] = ()
    behind: int | None = None
    unseen: float | None = None
    read_until: float | None = None
    lost: bool = False
    children: list[ChildShard] = []
    subscription: Subscription | None = None
    quiet: float = 0.0
    lowest: int | None = None
    before_end: tuple[Position, int] | None = None


class Report(msgspec.Struct, frozen=True):
    """A fetcher reports what has arrived."""

    name: str
    number: int  # One more than in the previous report; 1 if the report is complete
    shards: list[ShardNews] = []
    failure: bytes = b""  # The error that has ended reading, serialized by `pack_error`; empty without an error
    failures: dict[str, bytes] = {}  # Serialized errors of single queries, by the query's name in the run


class ReportReply(msgspec.Struct, frozen=True):
    """The reply to a report."""

    known: bool  # The run counts the fetcher as alive
    again: bool = False  # A report is missing, so the fetcher must report everything again
    revision: int = 0  # The newest revision of the fetcher's shards
    pause: float = 0.0  # Seconds to the next report


class WhereRequest(msgspec.Struct, frozen=True):
    """A task's request for the fetchers of some ranges."""

    shards: list[ShardKey]
    wait: float  # Maximum seconds to wait until every range has a fetcher
    query: str  # The name of the query in its run
    after: list[Position]  # The starts of its ranges, in the order of `shards`
    doubts: bool = False  # A fetcher was just unreachable

    @classmethod
    def of(cls, ranges: Sequence[ShardRange], wait: float, query: str = "", *, doubts: bool = False) -> WhereRequest:
        """Create the request for the fetchers of some ranges of a query."""
        return cls([wanted.key for wanted in ranges], wait, query, [wanted.after for wanted in ranges], doubts)


class WhereReply(msgspec.Struct, frozen=True):
    """`fetchers`: the shards' fetchers, in the order of the request (None: not assigned yet). `there`: number of the run's fetchers."""

    fetchers: list[FetcherAddress | None]
    there: int


class PlannerClient(Connection):
    """A connection to a run with fetchers in other processes; see `Connection`."""

    service = "planner"

    def work(self, request: WorkRequest) -> Work:
        """Request work."""
        return self.action(WORK, request, Work, request.wait + _ANSWER_SECONDS)

    def report(self, report: Report) -> ReportReply:
        """Report what has arrived."""
        return self.action(REPORT, report, ReportReply, _ANSWER_SECONDS)

    def where(self, request: WhereRequest) -> WhereReply:
        """Request the current fetchers of some ranges."""
        return self.action(WHERE, request, WhereReply, request.wait + _ANSWER_SECONDS)
