"""The messages between a run and its remote fetchers and tasks, and the client that calls the run.

A remote fetcher has up to two concurrent calls to the run: `work` waits for changed instructions, `report` describes the fetched events.
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
    """A task's request for the events that cover its ranges, in order."""

    ranges: Sequence[ShardRange]
    query: str = ""


class RowKey(NamedTuple):
    """The key of a buffer. `query` is the name of a query that is catching up, or None if all queries share the buffer."""

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
    start: Position | None  # Where the buffer begins; None if an earlier message with the same version contained it
    keep: Position  # Drop all events before this position
    kept: list[tuple[str, Position]] = []  # For each of several queries: the position from which it needs events
    known: Facts = NO_FACTS  # The low watermark at `start`, and which losses are accepted


class WorkRequest(msgspec.Struct, frozen=True):
    name: str  # A unique name, chosen by the fetcher
    place: int  # The fetcher's number in the run; the same for all attempts of its Spark task
    host: str  # The host's name, for messages
    address: FetcherAddress
    budget: int  # Bytes that the fetcher may buffer
    revision: int  # The newest `Work.revision` that the fetcher has applied; 0 before the first
    done: int  # The number of the last reply whose orders the fetcher has applied
    wait: float  # Seconds to wait for changes
    reading: bool = False  # Whether a task is reading from the fetcher
    version: str = ""  # The library version that the fetcher runs


class Work(msgspec.Struct, frozen=True):
    """The reply to a request for work.

    Attributes:
        standing: The fetcher's state in the run. `working`: apply the orders. `standby`: another attempt of the Spark task is alive; retry.
            `unknown`: the run considers the fetcher dead; close everything and register as a new fetcher. `over`: the run has ended.
        revision: Changes whenever `shards` changes.
        shards: All shards of the fetcher; None if the request has the newest revision.
        seconds: Seconds for which each stream may be read, from the time when the request was sent.
        number: The number of this reply.
        orders: The orders that have changed since the reply whose number is `done` in the request.
        streams: The streams of `shards`, by logical name; clients may have added streams to the run.
    """

    standing: str
    revision: int = 0
    shards: list[ShardKey] | None = None
    seconds: dict[str, float] = {}
    number: int = 0
    orders: list[tuple[ShardKey, Order]] = []
    streams: dict[str, StreamRef] = {}


class ShardNews(msgspec.Struct, frozen=True):
    """The changes in the buffer of one shard since the fetcher's last report.

    Attributes:
        version: The version of the order that the fetcher has applied.
        start: The start of a new buffer, which invalidates earlier reports about the shard; None if the buffer is not new.
        low: Where the buffered events begin, if the fetcher has dropped more than the order allowed; else None.
        waits: Whether the next event is waiting for space.
        behind: Milliseconds by which the last event was behind the tip; None before the first event.
        unseen: An upper bound for the age, in seconds, of records after the last event; None if unknown.
        read_until: The low watermark after the last event, epoch seconds; None if unknown.
        lost: Whether records after the last event were trimmed and the loss is accepted. Other readers must then not use `read_until`.
        children: The shard's children, if the shard has ended.
        quiet: Seconds for which the buffer has apparently been at the shard's tip; 0 if the shard may have more records.
        lowest: For a buffer that starts at a time or at the trim horizon: a sequence number after which it has all records, if known.
        before_end: The shard's `endingPosition`, with the sequence number of the last record up to it; None if that record is unknown.
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
    """A fetcher's report of changes in its shards."""

    name: str
    number: int  # 1 for a report on all shards of the fetcher; reports with a higher number contain only changes
    shards: list[ShardNews] = []
    failure: bytes = b""  # The error that has ended reading, serialized by `pack_error`; empty without an error
    failures: dict[str, bytes] = {}  # Serialized errors of individual queries, by the query's name in the run


class ReportReply(msgspec.Struct, frozen=True):
    known: bool  # Whether the run considers the fetcher alive
    again: bool = False  # Whether the run has missed a report; the next report must then be complete
    revision: int = 0  # The newest `Work.revision` for the fetcher
    pause: float = 0.0  # Seconds to wait before the next report


class WhereRequest(msgspec.Struct, frozen=True):
    """A task's request for the fetchers that serve its ranges."""

    shards: list[ShardKey]
    wait: float  # Maximum seconds to wait until every range has a fetcher
    query: str  # The query's name in the run
    after: list[Position]  # Where the ranges start, in the order of `shards`
    doubts: bool = False  # Whether the task could not reach a fetcher, which may be dead

    @classmethod
    def of(cls, ranges: Sequence[ShardRange], wait: float, query: str = "", *, doubts: bool = False) -> WhereRequest:
        return cls([wanted.key for wanted in ranges], wait, query, [wanted.after for wanted in ranges], doubts)


class WhereReply(msgspec.Struct, frozen=True):
    fetchers: list[FetcherAddress | None]  # The fetcher of each requested range; None for a shard without a fetcher
    there: int  # The number of the run's fetchers


class PlannerClient(Connection):
    """A connection to a run whose fetchers are in other processes. See `Connection` for the arguments."""

    service = "planner"

    def work(self, request: WorkRequest) -> Work:
        return self.action(WORK, request, Work, request.wait + _ANSWER_SECONDS)

    def report(self, report: Report) -> ReportReply:
        return self.action(REPORT, report, ReportReply, _ANSWER_SECONDS)

    def where(self, request: WhereRequest) -> WhereReply:
        return self.action(WHERE, request, WhereReply, request.wait + _ANSWER_SECONDS)
