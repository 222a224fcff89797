"""Computes the figures of a run over time: rates, trends, causes of lag, and which shards were added and removed. No I/O.

Compares successive status replies of the run (`kinesis_efo.fetcher.status`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from kinesis_efo.fetcher.status import QueryStatus, RunStatus, ShardStatus
from kinesis_efo.kinesis.stats import State
from kinesis_efo.positions import ShardKey

WINDOW_SECONDS: Final = 20.0
"""Rates and trends are averages over this many seconds. This spans several micro-batches, each of which processes megabytes at once."""

BEHIND_SECONDS: Final = 30.0
"""Fetching counts as behind if it is at least this many seconds behind the tip of the shard."""

WAITING_SECONDS: Final = 10.0
STUCK_SECONDS: Final = 120.0
"""A micro-batch counts as stuck if a record has waited for this many seconds and nothing was processed."""
SILENT_SECONDS: Final = 30.0
"""A subscription counts as silent after this many seconds without an event: six times the interval of events from an idle shard."""

_AT_THE_LIMIT: Final = 1.7e6
"""Bytes per second above which a shard is considered to be at Kinesis' limit (2 MB/s per shard and consumer, including JSON overhead)."""
_BUSY: Final = 0.9
_EVENTS: Final = 20


class LagCause(Enum):
    """The cause of a shard's lag, with its remedy and the section of the runbook that explains it."""

    NO_RUN = (
        "no run",
        "no query reads the streams",
        "start the query; its last error is in the driver's log",
        "no-rows-come",
    )
    NO_REPLY = (
        "no reply",
        "the run does not reply, so nothing newer is known",
        "look whether the driver runs, at its log, and at the network path to it",
        "no-rows-come",
    )
    PAUSED = (
        "no lease",
        "the run holds no lease, so it reads nothing",
        "look at its last warnings in the driver's log, and at the network path to DynamoDB",
        "top-names-a-cause",
    )
    STUCK = (
        "stuck",
        "no micro-batch has ended for minutes",
        "unless the trigger is that long, look in Spark's UI at what the running tasks or the sink wait for: a lock, a connection",
        "fetching-or-spark",
    )
    SPARK = (
        "Spark",
        "Spark is slow",
        "look at the query in Spark's UI: a slow sink, too few cores, skew",
        "fetching-or-spark",
    )
    SUBSCRIPTION = (
        "failing",
        "the subscription fails or is silent",
        "look for its error in the driver's log, and at the network path",
        "top-names-a-cause",
    )
    FETCHER = (
        "CPU",
        "the fetching process is out of CPU",
        "fetch on executors, with fetchers=2 or more",
        "fetching-or-spark",
    )
    LIMIT = (
        "limit",
        "at Kinesis' limit of 2 MB/s a shard",
        "wait, or split shards that get as much for long",
        "fetching-or-spark",
    )
    NETWORK = ("network", "records arrive slowly", "look at the network path to Kinesis", "fetching-or-spark")

    def __init__(self, short: str, what: str, remedy: str, section: str) -> None:
        self.short = short
        self.what = what
        self.remedy = remedy
        self.section = section


@dataclass(frozen=True, slots=True)
class ShardPulse:
    """The figures of one shard. Rates are None while unknown.

    Attributes:
        status: The shard's last status.
        incoming: Bytes per second that arrive from Kinesis.
        processed: Bytes per second that are processed.
        records_in: Kinesis records per second that arrive; also None if the run's version does not report records.
        records_out: Kinesis records per second that are processed; also None if the run's version does not report records.
        trend: Change of the lag, in seconds per second; negative while the shard catches up.
        failures: Subscription failures within the last `WINDOW_SECONDS`.
        cause: The cause of the shard's lag; None if it is not behind, or the cause is unknown.
    """

    status: ShardStatus
    incoming: float | None = None
    processed: float | None = None
    records_in: float | None = None
    records_out: float | None = None
    trend: float | None = None
    failures: int = 0
    cause: LagCause | None = None

    @property
    def seconds(self) -> float | None:
        """The shard's lag in seconds: the age of its oldest unprocessed record; None if unknown."""
        return None if self.status.millis is None else self.status.millis / 1000

    @property
    def caught_up_in(self) -> float | None:
        """Seconds until the shard catches up if the trend continues; None if it does not catch up, or is not behind."""
        if self.seconds is None or self.seconds < 1 or self.trend is None or self.trend > -0.05:
            return None
        return self.seconds / -self.trend


@dataclass(frozen=True, slots=True)
class QueryPulse:
    """The figures of one query of a run. Rates are None while unknown.

    Attributes:
        status: The query's last status.
        processed: Bytes per second that the query processes.
        records_out: Kinesis records per second that the query processes.
        calls: GetRecords responses per second that the query receives while it catches up.
        apart: Bytes per second in these responses.
        trend: Change of the lag, in seconds per second; negative while the query catches up.
    """

    status: QueryStatus
    processed: float | None = None
    records_out: float | None = None
    calls: float | None = None
    apart: float | None = None
    trend: float | None = None

    @property
    def seconds(self) -> float | None:
        """The lag of the query's slowest shard in seconds; None if unknown."""
        return None if self.status.millis is None else self.status.millis / 1000


class Sum(NamedTuple):
    """The total rates of several shards, and the lag of the slowest one. Values are None while unknown."""

    shards: int  # Number of shards
    seconds: float | None  # Lag of the slowest shard
    incoming: float | None  # Bytes per second that arrive from Kinesis
    processed: float | None  # Bytes per second that are processed
    records_in: float | None  # Kinesis records per second that arrive
    records_out: float | None  # Kinesis records per second that are processed


@dataclass(frozen=True, slots=True)
class View:
    """The figures of a run at one moment.

    Attributes:
        at: The time of the run's status, in epoch seconds by the run's clock.
        shards: The run's shards: first shards with a cause of lag, then the others, each group from slowest to fastest.
        buffered: Bytes fetched but not yet processed.
        room: Maximum bytes that the run may buffer.
        cpu: Share of a core that the run's process uses; None while unknown.
        queries: The run's queries in the order in which they joined; empty if there is only one and it is not catching up.
    """

    at: float
    shards: tuple[ShardPulse, ...]
    buffered: int
    room: int
    cpu: float | None
    queries: tuple[QueryPulse, ...] = ()

    def total(self, stream: str | None = None) -> Sum:
        """Sum up the figures of all shards, or of one stream's shards."""
        shards = [each for each in self.shards if stream in (None, each.status.stream)]
        return Sum(
            len(shards),
            max((each.seconds for each in shards if each.seconds is not None), default=None),
            _sum([each.incoming for each in shards]),
            _sum([each.processed for each in shards]),
            _sum([each.records_in for each in shards]),
            _sum([each.records_out for each in shards]),
        )

    def aged(self, seconds: float, cause: LagCause | None = None) -> View:
        """Return the view after `seconds` without a new status: lags have grown, and rates are unknown. All shards get `cause`, if given."""
        millis = round(1000 * seconds)
        shards = tuple(
            ShardPulse(
                msgspec.structs.replace(
                    each.status,
                    waiting=None if each.status.waiting is None else each.status.waiting + seconds,
                    behind=None if each.status.behind is None else each.status.behind + millis,
                    oldest=None if each.status.oldest is None else each.status.oldest + millis,
                ),
                cause=cause or each.cause,
            )
            for each in self.shards
        )
        queries = tuple(
            QueryPulse(
                msgspec.structs.replace(
                    each.status, millis=None if each.status.millis is None else each.status.millis + millis
                )
            )
            for each in self.queries
        )
        return replace(self, shards=shards, queries=queries, cpu=None)

    @property
    def streams(self) -> list[str]:
        """Logical names of the run's streams, sorted."""
        return sorted({each.status.stream for each in self.shards})


class Pulse:
    """Computes the figures of one run from its status replies."""

    def __init__(self) -> None:
        self._seen: deque[RunStatus] = deque()
        self._shards: deque[Mapping[ShardKey, ShardStatus]] = deque()
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)

    def begin(self, at: float, text: str) -> None:
        """Called when another run takes over: discards the replies of earlier runs, and records `text` as an event."""
        self._seen.clear()
        self._shards.clear()
        self._events.append((at, text))

    def note(self, at: float, text: str) -> None:
        """Record an event that cannot be derived from status replies."""
        self._events.append((at, text))

    def add(self, status: RunStatus) -> View:
        """Add a status reply, and return the new figures."""
        now = {each.key: each for each in status.shards}
        if self._shards:
            self._note_shards(status.at, self._shards[-1], now)
        self._seen.append(status)
        self._shards.append(now)
        while len(self._seen) > 2 and status.at - self._seen[0].at > WINDOW_SECONDS:
            self._seen.popleft()
            self._shards.popleft()
        first, before = self._seen[0], self._shards[0]
        seconds = status.at - first.at
        cpu = (status.cpu - first.cpu) / seconds if seconds > 0 else None
        busy = cpu is not None and cpu > _BUSY
        shards = [_pulse(each, before.get(each.key), seconds, busy=busy) for each in status.shards]
        # Sort by whole seconds of lag, so that displayed rows do not constantly change places.
        shards.sort(key=lambda each: (each.cause is None, -int(each.seconds or 0.0), each.status.key))
        return View(
            status.at,
            tuple(shards),
            sum(each.buffered for each in status.shards),
            status.room,
            cpu,
            _queries(status, first, seconds),
        )

    @property
    def events(self) -> tuple[tuple[float, str], ...]:
        """Recent events with their times, the newest last."""
        return tuple(self._events)

    def _note_shards(
        self, at: float, before: Mapping[ShardKey, ShardStatus], now: Mapping[ShardKey, ShardStatus]
    ) -> None:
        came, went = sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys())
        ended = sorted(key for key, each in now.items() if each.fetched == "SHARD_END" != before.get(key, each).fetched)
        for keys, what in ((ended, "ended"), (came, "began"), (went, "left")):
            if keys:
                self._events.append((at, f"{_named(keys)} {what}"))
        moved = [key for key, each in now.items() if key in before and before[key].fetcher != each.fetcher]
        if moved:
            self._events.append((at, f"{_named(sorted(moved))} moved to another fetcher"))


def _queries(status: RunStatus, first: RunStatus, seconds: float) -> tuple[QueryPulse, ...]:
    # The number alone is not unique: runs that read different streams each number their queries from the start.
    before = {(each.number, *each.streams): each for each in first.queries}
    return tuple(_query_pulse(each, before.get((each.number, *each.streams)), seconds) for each in status.queries)


def _query_pulse(now: QueryStatus, before: QueryStatus | None, seconds: float) -> QueryPulse:
    if before is None or seconds <= 0:
        return QueryPulse(now)
    trend = None if now.millis is None or before.millis is None else (now.millis - before.millis) / 1000 / seconds
    return QueryPulse(
        now,
        (now.bytes_done - before.bytes_done) / seconds,
        (now.records_done - before.records_done) / seconds,
        max(0, now.calls - before.calls) / seconds,
        max(0, now.arrived - before.arrived) / seconds,
        trend,
    )


def _pulse(now: ShardStatus, before: ShardStatus | None, seconds: float, *, busy: bool) -> ShardPulse:
    incoming = processed = records_in = records_out = trend = None
    failures = 0
    if before is not None and seconds > 0 and now.subscription is not None and before.subscription is not None:
        earlier, told = before.subscription, now.subscription
        came = None if told.records is None or earlier.records is None else told.records - earlier.records
        # Events without records, which an idle shard sends every few seconds, have bytes, too: do not count them.
        arrived = 0 if came == 0 else told.arrived - earlier.arrived
        if arrived >= 0:  # negative if the shard moved to a new fetcher, whose counter starts at 0
            incoming = arrived / seconds
            processed = max(0.0, (arrived - (now.buffered - before.buffered)) / seconds)
            if came is not None and came >= 0:  # negative after a move to a fetcher with more bytes but fewer records
                records_in = came / seconds
                records_out = max(0.0, (came - (now.records - before.records)) / seconds)
        failures = max(0, now.subscription.failures - before.subscription.failures)
        if now.millis is not None and before.millis is not None:
            # A subscription that has failed falls behind, whatever the average says.
            trend = 1.0 if told.state == State.WAITING.value else (now.millis - before.millis) / 1000 / seconds
    return ShardPulse(
        now,
        incoming,
        processed,
        records_in,
        records_out,
        trend,
        failures,
        _cause(now, incoming, processed, failures, busy=busy),
    )


def _cause(
    now: ShardStatus, incoming: float | None, processed: float | None, failures: int, *, busy: bool
) -> LagCause | None:
    subscription = now.subscription
    state = None if subscription is None else subscription.state
    silent = subscription is not None and subscription.age is not None and subscription.age > SILENT_SECONDS
    return cause_of(
        failing=(silent and state != State.ENDED.value)
        or bool(failures and state not in (None, State.STREAMING.value, State.PAUSED.value, State.ENDED.value)),
        paused=state == State.PAUSED.value,
        waiting=now.waiting is not None and now.waiting > WAITING_SECONDS,
        stuck=not processed and now.waiting is not None and now.waiting > STUCK_SECONDS,
        behind=now.behind is not None and now.behind / 1000 >= BEHIND_SECONDS,
        busy=busy,
        incoming=incoming,
    )


def cause_of(
    *, failing: bool, paused: bool, waiting: bool, stuck: bool, behind: bool, busy: bool, incoming: float | None
) -> LagCause | None:
    """Decide the cause of a shard's lag from the run's status; None if the shard is not behind, or the cause is unknown.

    Args:
        failing: The shard's subscription fails or is silent.
        paused: The subscription is closed because the buffer is full. Its silence is not a failure in this case.
        waiting: A fetched record has waited more than `WAITING_SECONDS` to be processed.
        stuck: A fetched record has waited more than `STUCK_SECONDS`, and nothing is processed.
        behind: Fetching is at least `BEHIND_SECONDS` behind the tip.
        busy: The process that fetches is out of CPU.
        incoming: Bytes per second that arrive; None if unknown.
    """
    # Check the subscription first: if AWS is unreachable, buffered records stay unread, too, but that is not the cause.
    if failing and not paused:
        return LagCause.SUBSCRIPTION
    if waiting:
        return LagCause.STUCK if stuck else LagCause.SPARK
    if not behind:
        return None
    if busy:
        return LagCause.FETCHER
    if incoming is not None and incoming > _AT_THE_LIMIT:
        return LagCause.LIMIT
    return LagCause.NETWORK if incoming is not None else None


def _sum(rates: list[float | None]) -> float | None:
    known = [each for each in rates if each is not None]
    return sum(known) if known else None


def _named(keys: list[ShardKey]) -> str:
    shown = ", ".join(str(key) for key in keys[:4])
    return f"{shown} and {len(keys) - 4} more" if len(keys) > 4 else shown
