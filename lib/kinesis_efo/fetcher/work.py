"""The messages of calls to fetchers, and of calls to a run that has fetchers in other processes; and a client for the latter.

Such a fetcher makes up to two calls to the run at a time: `work` waits for work, `report` sends what has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from kinesis_efo.calls.address import FetcherAddress
from kinesis_efo.calls.connection import Connection
from kinesis_efo.decisions.losses import NOTHING_KNOWN, Known
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
    """Asks for the events that cover some ranges of a query, in order. A task makes one call for all of them."""

    ranges: Sequence[ShardRange]
    query: str = ""


class RowKey(NamedTuple):
    """A row of the run's table: the events of a shard for one query that catches up, by its name, or for all queries (None)."""

    query: str | None
    shard: ShardKey

    @property
    def is_shared(self) -> bool:
        return self.query is None

    def __str__(self) -> str:
        return str(self.shard)


class Order(msgspec.Struct, frozen=True, array_like=True):
    """What the run orders for a row: since `version`, its events begin at `start`, of which something is `known`.

    Everything before `keep` is dropped. `kept` has the position from which on the row is kept for each query, if there are several. `start`
    is None in a message if an order of this version was sent before.
    """

    version: int
    start: Position | None
    keep: Position
    kept: list[tuple[str, Position]] = []
    known: Known = NOTHING_KNOWN


class WorkRequest(msgspec.Struct, frozen=True):
    """A fetcher asks for work, by a unique `name` that it has chosen. It may buffer `budget` bytes; `host` is for messages.

    `place` is its number in the run; another attempt of the same Spark task has the same. It has applied the `revision` of its shards (0 if
    it has none) and the orders of reply number `done`. It waits `wait` seconds if nothing is new. `reading`: a task reads from it. `version`
    is that of its library.
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
    version: str = ""


class Work(msgspec.Struct, frozen=True):
    """The reply to a request for work.

    Attributes:
        standing: `working`; `standby`: another attempt of its Spark task is alive, ask again; `unknown`: the fetcher counted as dead, so
            close everything and ask as a new fetcher; `over`: the run has ended.
        revision: The revision of `shards`.
        shards: All shards of the fetcher; None if the fetcher has the newest revision.
        seconds: Seconds for which each stream may be read, counted from before the request was sent.
        number: The number of this reply.
        orders: The orders for its shards that have changed since the reply that the request names.
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
        version: The version of the order that the fetcher obeys.
        start: The start of the shard's buffer, if the buffer is new; earlier reports of the shard are then void.
        low: If the fetcher has dropped more than was ordered, what it has begins here; else None.
        waits: There is no room for the next event.
        behind: Milliseconds by which the last event was behind the tip; None before the first event.
        unseen: An upper bound for the age, in seconds, of records after the last event; None if unknown.
        read_until: A time, epoch seconds, before which no record after the last event arrived; None if unknown.
        lost: Whether records after the last event were lost, as options allow. Then `read_until` holds for this reader only.
        children: The shard's children, if the shard has ended.
        quiet: Seconds for which the shard seems to have had no more records; 0 if it may have some.
        lowest: The lowest sequence number that the buffer is known to cover, if the buffer starts at a time or at the trim horizon.
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
    """A fetcher reports what has arrived.

    `number` is one more than in the report before; 1 if the report has everything. `failure` is the error that has ended reading,
    packed by `pack_error`; empty if there is none.
    """

    name: str
    number: int
    shards: list[ShardNews] = []
    failure: bytes = b""


class ReportReply(msgspec.Struct, frozen=True):
    """The reply to a report; `known` is whether the run counts the fetcher as alive. `revision` is the newest of its shards.

    `again`: the fetcher has to report everything, because a report is missing. `pause` are the seconds to the next report.
    """

    known: bool
    again: bool = False
    revision: int = 0
    pause: float = 0.0


class WhereRequest(msgspec.Struct, frozen=True):
    """A task asks for the fetchers of some ranges, and waits at most some seconds until all of them have one.

    `after` are the starts of its ranges, in the order of the shards; `query` is the name of the query in its run. `doubts`: it has just
    tried one in vain.
    """

    shards: list[ShardKey]
    wait: float
    query: str
    after: list[Position]
    doubts: bool = False

    @classmethod
    def of(cls, ranges: Sequence[ShardRange], wait: float, query: str = "", *, doubts: bool = False) -> WhereRequest:
        """The request for some ranges of a query."""
        return cls([wanted.key for wanted in ranges], wait, query, [wanted.after for wanted in ranges], doubts)


class WhereReply(msgspec.Struct, frozen=True):
    """The addresses of the shards' fetchers, in the order of the shards (None: no fetcher yet), and the number of the run's fetchers."""

    fetchers: list[FetcherAddress | None]
    there: int


class PlannerClient(Connection):
    """A connection to a run that has fetchers in other processes; see `Connection`."""

    service = "planner"

    def work(self, request: WorkRequest) -> Work:
        """Ask for work."""
        return self.action(WORK, request, Work, request.wait + _ANSWER_SECONDS)

    def report(self, report: Report) -> ReportReply:
        """Report what has arrived."""
        return self.action(REPORT, report, ReportReply, _ANSWER_SECONDS)

    def where(self, request: WhereRequest) -> WhereReply:
        """Ask for the present fetchers of some ranges."""
        return self.action(WHERE, request, WhereReply, request.wait + _ANSWER_SECONDS)
