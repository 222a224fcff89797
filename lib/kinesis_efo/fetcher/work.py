"""The messages between the planner and the fetchers of other processes. All calls go from fetcher to planner.

A fetcher has two calls under way: `work` waits for what it is to do, `report` tells what has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import msgspec

from kinesis_efo.fetcher.address import FetcherAddress
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.kinesis.arrivals import Mark
from kinesis_efo.kinesis.events import ChildShard
from kinesis_efo.manifest import StreamRef
from kinesis_efo.positions import LastRecord, Position, PositionKind, ShardKey, ShardRange

WORK: Final = "work"
REPORT: Final = "report"
WHERE: Final = "where"


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


class StreamText(msgspec.Struct, frozen=True, array_like=True):
    """A stream that a run reads.

    Attributes:
        name: Its name in Kinesis.
        arn: Its ARN.
        consumer: The ARN of its consumer; None for one that is polled.
    """

    name: str
    arn: str
    consumer: str | None

    @classmethod
    def of(cls, ref: StreamRef) -> Self:
        """The message for a stream."""
        return cls(ref.stream_name, ref.stream_arn, ref.consumer_arn)

    def ref(self, name: str) -> StreamRef:
        """The stream, by its logical name."""
        return StreamRef(name, self.name, self.arn, self.consumer)


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """A shard that a fetcher may read.

    Attributes:
        stream: Logical name of its stream.
        shard: Shard id.
        start: Where to begin.
        read_until: What arrived before this time lies at or before `start`, epoch seconds, if that is known.
    """

    stream: str
    shard: str
    start: str
    read_until: float | None = None

    @property
    def key(self) -> ShardKey:
        """The shard."""
        return ShardKey(self.stream, self.shard)


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
    done: list[tuple[str, str, str]] = []
    shared: bool = False
    streams: dict[str, StreamText] = {}


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An event that was buffered.

    Attributes:
        through: The position behind it.
        size: Bytes that it occupies; 0 if it has no records.
        records: Kinesis records in it.
        last: Its last record, the text of a `LastRecord`; empty if its number is that of `through`, None if it is not known, or there is none.
        marks: When its records arrived in the stream, if that is noted.
    """

    through: str
    size: int
    records: int
    last: str | None = None
    marks: list[tuple[int, int, str, int]] = []

    @classmethod
    def of(cls, event: BufferedEvent) -> Entry:
        """The message for an event."""
        # Sequence numbers have more digits than JSON numbers are trusted with.
        marks = [(mark.earliest, mark.latest, str(mark.through), mark.records) for mark in event.marks]
        return cls(str(event.through), event.size, event.records, _last(event.through, event.last), marks)

    def parsed_marks(self) -> tuple[Mark, ...]:
        """The marks as buffers have them."""
        return tuple(Mark(earliest, latest, int(through), records) for earliest, latest, through, records in self.marks)


class Child(msgspec.Struct, frozen=True, array_like=True):
    """A child of a shard that has ended; hash keys have 128 bits, more than JSON numbers are trusted with."""

    shard: str
    parents: tuple[str, ...]
    starting_hash: str
    ending_hash: str

    @classmethod
    def of(cls, child: ChildShard) -> Child:
        """The message for a child."""
        return cls(child.shard_id, tuple(child.parents), str(child.starting_hash), str(child.ending_hash))

    def parsed(self) -> ChildShard:
        """The child as events announce it."""
        return ChildShard(self.shard, self.parents, int(self.starting_hash), int(self.ending_hash))


class ShardNews(msgspec.Struct, frozen=True):
    """What has happened in one shard since the last report.

    Attributes:
        stream: Logical name of its stream.
        shard: Shard id.
        start: Where its buffer begins, if that began anew: what was told of the shard before is void.
        entries: The events since.
        behind: How far reading lags, in milliseconds.
        unseen: What had arrived in the stream so long ago, seconds, lies before the end of the last entry, if that is known.
        read_until: What arrived before this time lies before the end of the last entry, epoch seconds, if that is known.
        children: Its children, if it has ended.
        subscription: What happened to its subscriptions.
        tip: Where it ended when fetching began there, if that is known.
        quiet: For how long it is believed that nothing more is there, seconds; 0 if that is not believed.
        lowest: The lowest number that its buffer is known to cover, if it begins at a time.
        before_end: Where the query is to end in the shard, and the number of the last record up to there, once that is seen.
    """

    stream: str
    shard: str
    start: str | None = None
    entries: list[Entry] = []
    behind: int | None = None
    unseen: float | None = None
    read_until: float | None = None
    children: list[Child] = []
    subscription: Subscription | None = None
    tip: str | None = None
    quiet: float = 0.0
    lowest: str | None = None
    before_end: tuple[str, str] | None = None

    @property
    def key(self) -> ShardKey:
        """The shard."""
        return ShardKey(self.stream, self.shard)


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

    shards: list[tuple[str, str]]
    wait: float
    query: str
    after: list[str]

    @classmethod
    def of(cls, ranges: Sequence[ShardRange], wait: float, query: str = "") -> WhereRequest:
        """The question for some ranges of a query."""
        shards = [(wanted.key.stream, wanted.key.shard) for wanted in ranges]
        return cls(shards, wait, query, [str(wanted.after) for wanted in ranges])


class WhereReply(msgspec.Struct, frozen=True):
    """Who reads some shards.

    Attributes:
        fetchers: The fetchers, in the order of the shards; None: nobody yet.
        there: The number of fetchers that are there, whatever they read.
    """

    fetchers: list[FetcherAddress | None]
    there: int


def _last(through: Position, record: LastRecord | None) -> str | None:
    """An event's last record as reports have it: most events end with it."""
    if record is None:
        return None
    return "" if through.kind is PositionKind.AFTER and record == LastRecord(through.value) else str(record)
