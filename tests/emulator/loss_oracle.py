"""Decides whether a query has lost, doubled or disordered a record, or has reported a loss where there was none.

Shares no code with the library: it knows what Kinesis accepted, when each record was trimmed, where each query starts, which rows each
query has committed, and which warnings and errors were logged, as text.
"""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from math import inf
from typing import Final, NamedTuple

CLOCK_SECONDS: Final = 2.5
"""A start at `LATEST` may be this much too early: Kinesis' clock has whole seconds, and an answer takes time."""

TRIM_SECONDS: Final = 2.0
"""Sequence numbers have whole seconds, so a loss is known to a second or two."""

TOGETHER_SECONDS: Final = 60.0
"""A start at `LATEST` beside other queries begins where they read, which may be this much too early; see docs/how-to/several-tables.md."""

MORE_SECONDS: Final = 60.0

START_SECONDS: Final = 60.0
"""A start at the trim horizon begins where the horizon is when the shard is opened, up to this much later, as docs/failures.md says."""

_LOSS: Final = re.compile(r"\bare gone\b|\bwere lost\b|\bwas trimmed\b|\bwere trimmed\b")
_SHARD: Final = re.compile(r"shardId-\d{12}")
_BETWEEN: Final = re.compile(r"between (\d{4}-\d\d-\d\dT\S+?) and (\d{4}-\d\d-\d\dT\S+?)[ ,;.]")
_LOSSES: Final = re.compile(r"([\d,]+) losses in stream ('[^']*'): (.*)")
_CAUSE: Final = re.compile(r"; (?=stream '|shard [^ ]*:shardId-)")
_MORE: Final = re.compile(
    r"; and (\d+) more(?:, of any records between (\S+) and (\S+))?, in shards (\d+(?:(?:, | to )\d+)*)"
)
_REMARK: Final = re.compile(r"; option acceptDataLoss accepts|; continuing without|\. While shards")


def single(text: str) -> list[str]:
    """A text for each loss of a logged line, as if it were the only one there. A shard without details gets those of the first."""
    if (found := _LOSSES.fullmatch(text)) is None:
        return [text]
    count, _, body = found.groups()
    *causes, last = _CAUSE.split(body)
    more = _MORE.search(last)
    end = more or _REMARK.search(last)
    if end is None:
        raise Broken(f"it is not said what became of the losses: {text}")
    remark = last[more.end() if more else end.start() :]
    causes.append(last[: end.start()])
    if more is not None:
        number, begin, until, names = more.groups()
        shards = [shard for part in names.split(", ") for shard in _expanded(part)]
        if len(shards) > int(number):
            raise Broken(f"more shards than losses: {text}")
        first = re.sub(r"between \S+ and \S+ ", f"between {begin} and {until} ", causes[0]) if begin else causes[0]
        causes += [_SHARD.sub(shard, first) for shard in shards]
        causes += [causes[-1]] * (int(number) - len(shards))  # a shard may have lost something twice
    if len(causes) != int(count.replace(",", "")):
        raise Broken(f"{len(causes)} losses are named: {text}")
    return [cause + remark for cause in causes]


def _expanded(part: str) -> list[str]:
    first, _, last = part.partition(" to ")
    return [f"shardId-{number:012}" for number in range(int(first), int(last or first) + 1)]


class Record(NamedTuple):
    """A record that Kinesis accepted: the `number`-th one of its key. `arrival` is in epoch seconds."""

    stream: str
    shard: str
    sequence: int
    key: str
    number: int
    arrival: float


class Row(NamedTuple):
    """A row that a query has written. `task` tells the tasks of a micro-batch apart."""

    stream: str
    shard: str
    sequence: int
    key: str
    number: int
    task: int


@dataclass
class Shard:
    """A shard of a stream; `closed` is None while it is open."""

    parents: tuple[str, ...]
    created: float
    closed: float | None = None
    records: list[Record] = field(default_factory=list)


@dataclass
class StreamFacts:
    """What is true of one stream. `retention` is in seconds; times are epoch seconds. `lies`: whether Kinesis says so often in a row that
    nothing is there, although something is, that it is believed."""

    retention: float
    created: float
    lies: bool = False
    shards: dict[str, Shard] = field(default_factory=dict)

    def ancestors(self, shard: str) -> set[str]:
        """All ancestors of a shard."""
        found: set[str] = set()
        ahead = [shard]
        while ahead:
            for parent in self.shards[ahead.pop()].parents:
                if parent not in found:
                    found.add(parent)
                    ahead.append(parent)
        return found

    def relatives(self, shard: str) -> set[str]:
        """All shards that are ancestors or descendants of one of a shard's ancestors or descendants."""
        lines = {each: {each, *self.ancestors(each)} for each in self.shards}
        related = {each for each, line in lines.items() if shard in line} | lines[shard]
        return {other for each in related for other, line in lines.items() if each in line or other in lines[each]}

    def trimmed_at(self, record: Record) -> float:
        """When the record is trimmed."""
        return record.arrival + self.retention


class Report(NamedTuple):
    """A warning or an error, and when it was logged or raised, epoch seconds."""

    at: float
    text: str
    query: str | None = None

    @property
    def is_loss(self) -> bool:
        """Whether it says that records are lost."""
        return _LOSS.search(self.text) is not None and "cannot tell" not in self.text

    @property
    def goes_on(self) -> bool:
        """Whether it covers what goes within a minute, too."""
        return "further records may be lost" in self.text

    def names(self, record: Record) -> bool:
        """Whether the text covers a record: its shard, and its time if the text has any."""
        if not _names_stream(self.text, record.stream):
            return False
        if "of older shards that are not listed" in self.text:
            return record.shard <= max(_SHARD.findall(self.text))
        if record.shard not in self.text:
            return False
        more = MORE_SECONDS if self.goes_on else 0.0
        return all(
            _epoch(begin) - TRIM_SECONDS <= record.arrival <= _epoch(end) + TRIM_SECONDS + more
            for begin, end in _BETWEEN.findall(self.text)
        )


def _names_stream(text: str, stream: str) -> bool:
    return repr(stream) in text or f"{stream}:shardId" in text


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class Need(Enum):
    """Whether a query must read a record."""

    MUST = "must"
    MAY = "may"
    MUST_NOT = "must not"


class Begin(NamedTuple):
    """Where a query starts in a shard: the text of the option, `LATEST`, `TRIM_HORIZON`, `AT_TIMESTAMP:<ms>` or `AFTER:<number>`."""

    text: str

    def need(self, record: Record, asked: float, answered: float, early: float) -> Need:
        """Whether a query that starts here must read a record of the shard. A start at `LATEST` may be `early` seconds too early."""
        name, _, value = self.text.partition(":")
        match name:
            case "TRIM_HORIZON":
                return Need.MUST
            case "LATEST":
                if record.arrival >= answered:
                    return Need.MUST
                return Need.MAY if record.arrival >= asked - early else Need.MUST_NOT
            case "AT_TIMESTAMP":
                return Need.MUST if round(record.arrival * 1000) >= int(value) else Need.MUST_NOT
            case "AFTER":
                return Need.MUST if record.sequence > int(value) else Need.MUST_NOT
            case "SHARD_END":
                return Need.MUST_NOT
        return Need.MAY


@dataclass
class Membership:
    """A stream's time in a query: where it starts, when that was asked and answered, and what was read since.

    `named` has the starts of some shards, `others` that of the others. `rows` are those of several tables, if there are
    more than one: what lies between them may be read.
    """

    facts: StreamFacts
    others: Begin
    named: Mapping[str, Begin]
    asked: float
    answered: float
    later: Mapping[str, Begin] | None = None
    early: float = CLOCK_SECONDS
    read: dict[str, int] = field(default_factory=dict)
    read_untold: list[tuple[str, float]] = field(default_factory=list)
    read_at: list[tuple[float, str, float]] = field(default_factory=list)
    next: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    numbers: dict[str, int] = field(default_factory=dict)
    missed: list[Record] = field(default_factory=list)
    got: set[int] = field(default_factory=set)

    def need(self, record: Record) -> Need:
        """Whether the query must read a record."""
        need = self._need(record, self.named)
        if self.later is not None and self._need(record, self.later) is not need:
            need = Need.MAY
        if need is Need.MUST_NOT and self.facts.lies:
            return Need.MAY
        begin = self._begin(record.shard, self.named)
        late = START_SECONDS if begin is not None and begin.text == "TRIM_HORIZON" else 0.0
        if need is Need.MUST and self.facts.trimmed_at(record) < self.answered + late + TRIM_SECONDS:
            # It may have been trimmed before the query began.
            return Need.MAY if self._timed(record) else need
        return need

    def _timed(self, record: Record) -> bool:
        begin = self._begin(record.shard, self.named)
        return begin is None or not begin.text.startswith(("AFTER", "AT_TIMESTAMP"))

    def _begin(self, shard: str, named: Mapping[str, Begin]) -> Begin | None:
        return named.get(shard, self.others if not named or self.others.text == "TRIM_HORIZON" else None)

    def _need(self, record: Record, named: Mapping[str, Begin]) -> Need:
        facts = self.facts
        if self.later is not None and any(
            at.text.startswith(("AFTER", "SHARD_END")) and record.shard in facts.ancestors(shard)
            for shard, at in named.items()
        ):
            return (
                Need.MAY
            )  # the row of a child says that its parents are read, although theirs may not have been written
        if record.shard in named:
            need = named[record.shard].need(record, self.asked, self.answered, self.early)
            # A row of an ancestor, which a slower query reads, lets a start from rows read the whole shard.
            after_another = self.later is not None and not facts.ancestors(record.shard).isdisjoint(named)
            return Need.MAY if need is Need.MUST_NOT and after_another else need
        if named:
            ancestors = facts.ancestors(record.shard)
            if ancestors & named.keys():
                return Need.MUST  # what follows a shard that is read is read as well
            if facts.relatives(record.shard) & named.keys():
                # The option does not say what is read of a shard whose ancestor, or other parent's ancestor, is not read.
                return Need.MAY if record.arrival < self.answered else Need.MUST
        if record.arrival >= self.answered:
            return Need.MUST
        return self.others.need(record, self.asked, self.answered, self.early)


class Broken(AssertionError):
    """A promise was broken."""


class QueryOracle:
    """Follows one query and its sink.

    Args:
        name: For messages.
        reports: All warnings and errors so far.
        accepts: Whether the query has accepted a loss in a shard of a stream.
    """

    def __init__(self, name: str, reports: list[Report], accepts: Callable[[str, str], bool] = lambda *_: True) -> None:
        self.name = name
        self.reports = reports
        self.accepts = accepts
        self.streams: dict[str, Membership] = {}
        self._left: dict[str, Membership] = {}
        self.rows = 0
        self.exceptions: Counter[str] = Counter()

    def begins(self, stream: str, membership: Membership) -> None:
        """The query begins with a stream."""
        self.streams[stream] = membership

    def leaves(self, stream: str) -> None:
        """The query reads a stream no more, as was asked."""
        if (member := self.streams.pop(stream, None)) is not None:
            self._left[stream] = member  # a report that was made before is judged later

    def committed(self, rows: Sequence[Row], at: float) -> None:
        """A micro-batch is committed."""
        self.rows += len(rows)
        tasks: dict[tuple[str, str], int] = {}
        for row in rows:
            where = f"{self.name}: record {row.key}:{row.number} of {row.stream}, {row.shard}, {row.sequence},"
            member = self.streams.get(row.stream)
            if member is None:
                raise Broken(f"{where} was read, but the query does not read that stream")
            if tasks.setdefault((row.stream, row.key), row.task) != row.task:
                raise Broken(f"{where} is in another task than records of its key before")
            if row.sequence <= member.read.get(row.shard, -1):
                raise Broken(f"{where} was read twice, or after a later one")
            record = self._record(member, row)
            if record is None:
                raise Broken(f"{where} was never accepted")
            if member.need(record) is Need.MUST_NOT:
                raise Broken(f"{where} was read, but lies before the start")
            if row.number <= member.numbers.get(row.key, -1):
                raise Broken(f"{where} was read after a later record of its key")
            member.numbers[row.key] = row.number
            self._pass(member, row.shard, row.sequence, at)
            for shard in member.facts.ancestors(row.shard):
                self._pass(member, shard, inf, at)
            member.read[row.shard] = row.sequence
            member.read_untold.append((row.shard, record.arrival))
            member.next[row.shard] += 1

    def _record(self, member: Membership, row: Row) -> Record | None:
        shard = member.facts.shards.get(row.shard)
        if shard is None:
            return None
        index = bisect_left(shard.records, row.sequence, key=lambda each: each.sequence)
        found = shard.records[index] if index < len(shard.records) else None
        if found is None or (found.sequence, found.key, found.number) != (row.sequence, row.key, row.number):
            return None
        return found

    def _pass(self, member: Membership, shard: str, before: float, at: float) -> None:
        """Check the records of a shard that are passed over."""
        records = member.facts.shards[shard].records
        while member.next[shard] < len(records) and records[member.next[shard]].sequence < before:
            record = records[member.next[shard]]
            member.next[shard] += 1
            if member.need(record) is Need.MUST:
                self._check_missed(member, record, at)

    def _check_missed(self, member: Membership, record: Record, at: float) -> None:
        where = (
            f"{self.name}: record {record.key}:{record.number} of {record.stream}, {record.shard}, {record.sequence},"
        )
        trimmed = member.facts.trimmed_at(record)
        if trimmed > at + TRIM_SECONDS:
            raise Broken(f"{where} was left out, although it is still there for {trimmed - at:.0f} s")
        if not self._is_reported(record, trimmed, at):
            raise Broken(
                f"{where} is lost in silence: it was trimmed {at - trimmed:.0f} s before later ones were committed"
            )
        member.missed.append(record)

    def _is_reported(self, record: Record, trimmed: float, at: float) -> bool:
        return any(
            report.is_loss and report.names(record) and self._is_told(report, record.stream)
            for report in self.reports
            if trimmed - TRIM_SECONDS - (MORE_SECONDS if report.goes_on else 0) <= report.at <= at
        )

    def _is_told(self, report: Report, stream: str) -> bool:
        """Whether a report counts for this query: what another one of the program accepts does not."""
        accepted = "acceptDataLoss accepts" in report.text
        return not accepted or any(self.accepts(stream, shard) for shard in _SHARD.findall(report.text))

    # -- what is left

    def unread(self, stream: str, before: float = inf) -> Iterable[Record]:
        """The records that the query must read and has not read, accepted before a time."""
        member = self.streams[stream]
        for shard, known in member.facts.shards.items():
            for record in known.records[member.next[shard] :]:
                if record.arrival < before and member.need(record) is Need.MUST:
                    yield record

    def oldest_unread(self, now: float) -> Record | None:
        """The oldest record that the query must read, has not read, and can still read."""
        found = [
            record
            for stream, member in self.streams.items()
            for record in self.unread(stream)
            if member.facts.trimmed_at(record) > now
        ]
        return min(found, key=lambda record: record.arrival, default=None)

    def misses(self, now: float) -> bool:
        """Whether a record was trimmed that the query must read, has not read, and was not told of: it may be buffered."""
        return any(
            not self._is_reported(record, member.facts.trimmed_at(record), now)
            for stream, member in self.streams.items()
            for record in self.unread(stream)
        )

    def has_lost(self, report: Report, within: float = TRIM_SECONDS) -> bool:
        """Whether an unread record of a shard that a report names was trimmed, or is within some seconds."""
        return self._has_lost(set(_SHARD.findall(report.text)), report, within)

    def tells(self, at: float) -> None:
        """The query has told its run what it has committed."""
        for member in self.streams.values():
            member.read_at += [(at, *each) for each in member.read_untold]
            member.read_untold.clear()

    def has_ended(self, streams: Collection[str], begun: float, at: float) -> None:
        """The query has ended, and so has read whatever came before it began, but for what was lost."""
        lost = {shard for report in self.reports if report.is_loss for shard in _SHARD.findall(report.text)}
        for member in (self.streams[name] for name in self.streams.keys() & streams):
            member.read_at += [(at, shard, begun - MORE_SECONDS) for shard in member.facts.shards.keys() - lost]

    def has_gap(self, report: Report) -> bool:
        """Whether a time that a report names was trimmed, and reaches beyond what the run knew by then to be read of a shard that it names."""
        return not self.streams or any(
            begin <= end <= report.at - member.facts.retention + TRIM_SECONDS
            and not any(
                at < report.at - MORE_SECONDS and each == shard and arrival > end + TRIM_SECONDS
                for at, each, arrival in member.read_at
            )
            for stream, member in (self._left | self.streams).items()
            if _names_stream(report.text, stream)
            for shard in _SHARD.findall(report.text)
            for begin, end in (map(_epoch, times) for times in _BETWEEN.findall(report.text))
        )

    def _has_lost(self, shards: Collection[str], report: Report, within: float = TRIM_SECONDS) -> bool:
        return any(
            record.shard in shards and member.facts.trimmed_at(record) <= report.at + within
            for stream, member in self.streams.items()
            if _names_stream(report.text, stream)
            for record in [*self.unread(stream), *member.missed]
        )

    def check_end(self, now: float) -> None:
        """Check that everything was read that could be, and the rest reported."""
        for stream, member in self.streams.items():
            for record in self.unread(stream):
                self._check_missed(member, record, now)
