"""The figures of ``kinesis-efo top``, for the terminal and the web page: columns, totals, states, remedies for lag. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from kinesis_efo.records.events import data_in
from kinesis_efo.units import format_size
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.shapes import Shape, duration, written_out
from kinesis_efo_tools.operate.documentation import address
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.pulse import LagCause, QueryPulse, ShardPulse, Sum, View

_runbook: Final = partial(address, "runbook")
_STALE_SECONDS: Final = 5.0
_STEADY: Final = 0.02


class Tone(Enum):
    """The severity of a displayed state. It determines the state's color in the terminal and on the web page."""

    GOOD = "good"
    BUSY = "busy"
    BAD = "bad"
    PLAIN = "plain"


_TONES: Final = {
    "streaming": Tone.GOOD,
    "failed": Tone.BAD,
    "waiting": Tone.BUSY,
    "paused": Tone.BUSY,
    "opening": Tone.BUSY,
}


def state(each: ShardPulse) -> str | None:
    """Return the state of the shard's subscription; None if unknown."""
    return None if each.status.subscription is None else each.status.subscription.state


def tone(name: str | None) -> Tone:
    """Return the severity of a subscription's state."""
    return _TONES.get(name or "", Tone.PLAIN)


T = TypeVar("T")


class Column(NamedTuple, Generic[T]):
    """A column in the table of shards or of queries.

    `cell` formats the cell of a row, or returns None if its value is unknown. On a narrow terminal, columns with a high `spare` are omitted
    first; those with 0 are always shown.
    """

    title: str
    cell: Callable[[T, Shape], str | None]
    justify: Literal["left", "right"] = "left"
    spare: int = 0


def columns(view: View) -> list[Column[ShardPulse]]:
    """Return the columns for the shards of a run. Omits `stream` for a single stream, and `fetcher` if no fetcher is known."""
    needless = {
        "stream": len(view.streams) == 1,
        "fetcher": not any(each.status.fetcher for each in view.shards),
    }
    return [each for each in _COLUMNS if not needless.get(each.title)]


def query_columns(view: View) -> list[Column[QueryPulse]]:
    """Return the columns for the queries of a run. Omits `reads`, the streams of a query, if all queries read the same streams."""
    alike = len({tuple(each.status.streams) for each in view.queries}) == 1
    return [each for each in _QUERY_COLUMNS if each.title != "reads" or not alike]


def _behind(each: ShardPulse | QueryPulse, _: Shape) -> str | None:
    if each.seconds is None:
        return None
    trend = each.trend or 0.0
    arrow = (
        " " if abs(trend) < _STEADY or each.seconds < 1 else "\N{UPWARDS ARROW}" if trend > 0 else "\N{DOWNWARDS ARROW}"
    )
    return f"{duration(each.seconds)} {arrow}"


def _age(each: ShardPulse, shape: Shape) -> str | None:
    subscription = each.status.subscription
    return None if subscription is None or subscription.age is None else shape.ago(subscription.age)


def _fetcher(each: ShardPulse, shape: Shape) -> str | None:
    """Format a shard's fetcher as its number, with its host unless the terminal is narrow."""
    name = each.status.fetcher
    return name if name is None or shape.roomy else name.partition(" ")[0]


def _counted(each: ShardPulse, name: Literal["opened", "failures"]) -> str | None:
    return None if each.status.subscription is None else f"{getattr(each.status.subscription, name):,}"


def _apart(each: QueryPulse, _: Shape) -> str:
    """Format the number of shards that a query reads apart with GetRecords, and the bytes per second that it reads in this way."""
    if not each.status.apart:
        return ""
    shards = output.count(each.status.apart, "shard")
    return shards if each.apart is None else f"{shards}, {rate(each.apart)}"


def _slowest(each: QueryPulse, shape: Shape) -> str | None:
    return None if each.status.shard is None or not each.seconds else shape.shard(each.status.shard)


STATE: Final[Column[ShardPulse]] = Column("state", lambda each, _: state(each))

_COLUMNS: Final[tuple[Column[ShardPulse], ...]] = (
    Column("stream", lambda each, _: each.status.stream),
    Column("shard", lambda each, shape: shape.shard(each.status.shard)),
    STATE,
    Column("behind", _behind, "right"),
    Column("left", lambda each, _: _duration(each.caught_up_in), "right", spare=3),
    Column("in/s", lambda each, _: rate(each.incoming, ""), "right", spare=1),
    Column("out/s", lambda each, _: rate(each.processed, ""), "right", spare=1),
    Column("buffered", lambda each, _: format_size(each.status.buffered), "right", spare=2),
    Column("waits", lambda each, _: _duration(each.status.waiting), "right", spare=5),
    Column("last event", _age, "right", spare=6),
    Column("opened", lambda each, _: _counted(each, "opened"), "right", spare=8),
    Column("failed", lambda each, _: _counted(each, "failures"), "right", spare=7),
    Column("fetcher", _fetcher, spare=4),
    Column("slow", lambda each, _: "" if each.cause is None else each.cause.short),
)


_QUERY_COLUMNS: Final[tuple[Column[QueryPulse], ...]] = (
    Column("query", lambda each, _: each.status.name or str(each.status.number)),
    Column("checkpoint", lambda each, _: each.status.checkpoint, spare=1),
    Column("reads", lambda each, _: ", ".join(each.status.streams), spare=5),
    Column("behind", _behind, "right"),
    Column("slowest", _slowest, spare=4),
    Column("to do", lambda each, _: format_size(each.status.bytes), "right", spare=3),
    Column("out/s", lambda each, _: rate(each.processed, ""), "right", spare=2),
    Column("holds", lambda each, _: format_size(each.status.held), "right"),
    Column("apart", _apart),
)


def query_line(each: QueryPulse) -> str:
    """Format a query in one line."""
    status = each.status
    line = f"{status.label}: " + ("no status yet" if each.seconds is None else f"{duration(each.seconds)} behind")
    line += f", processed {rate(each.processed) or '-'}, holds {format_size(status.held)}"
    return f"{line}, reads apart: {_apart(each, Shape(roomy=False))}" if status.apart else line


def rate(bytes_per_second: float | None, unit: str = "/s") -> str | None:
    """Format a number of bytes per second; None if unknown."""
    return None if bytes_per_second is None else f"{format_size(round(bytes_per_second))}{unit}"


def behind(total: Sum) -> str:
    """Format the lag of a group of shards, which is the lag of the slowest shard."""
    return "no status yet" if total.seconds is None else f"{duration(total.seconds)} behind"


def stream_line(stream: str, total: Sum) -> str:
    """Format the total of a stream's shards in one line."""
    return (
        f"{stream}: {output.count(total.shards, 'shard')}, {behind(total)}, "
        f"in {rate(total.incoming) or '-'}, processed {rate(total.processed) or '-'}"
    )


def buffered_line(view: View) -> str:
    """Format the buffered bytes and the CPU of the run's process in one line."""
    return f"buffered {format_size(view.buffered)} of {format_size(view.room)}" + (
        "" if view.cpu is None else f"; run {view.cpu:.0%} of a core"
    )


def left_out(left: list[ShardPulse]) -> str:
    """Return a line that summarizes the shards that do not fit on the screen."""
    known = [each.seconds for each in left if each.seconds is not None]
    return f"and {output.count(len(left), 'shard')} more" + (
        f", none further behind than {duration(max(known))}" if known else ""
    )


def stale(look: Observation) -> str | None:
    """Format the age of the figures; None if they are at most a few seconds old."""
    age = 0.0 if look.said is None else look.at - look.said
    return f"as of {duration(age)} ago" if age > _STALE_SECONDS else None


class Remedy(NamedTuple):
    """What is slow, the number of shards, and what to do; and the address of the runbook's section about it."""

    text: str
    page: str


def remedies(view: View) -> list[Remedy]:
    """Return a remedy for each cause of lag that some shard has."""
    lines = []
    for cause in LagCause:
        shards = sum(each.cause is cause for each in view.shards)
        if shards:
            text = f"{cause.short}: {cause.what} ({output.count(shards, 'shard')}). What to do: {cause.remedy}"
            lines.append(Remedy(text, _runbook(cause.section)))
    return lines


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration(seconds)


def data(application: str, look: Observation) -> dict[str, Any]:
    """Convert an observation to plain data, for scripts."""
    view = look.view
    return {
        "application": application,
        "at": written_out(look.at),
        "runs": look.owners,
        "asOfSeconds": None if look.said is None else round(max(0.0, look.at - look.said), 1),
        "trouble": look.trouble or None,
        "bufferedBytes": None if view is None else view.buffered,
        "roomBytes": None if view is None else view.room,
        "plannerCpu": None if view is None else view.cpu,
        "queries": [] if view is None else [_query(each) for each in view.queries],
        "shards": [] if view is None else [_shard(each) for each in view.shards],
        "causes": [
            {"name": cause.short, "what": cause.what, "remedy": cause.remedy, "runbook": _runbook(cause.section)}
            for cause in LagCause
        ],
        "events": [{"at": written_out(at), "text": text} for at, text in look.events],
    }


def _query(each: QueryPulse) -> dict[str, Any]:
    status = each.status
    return {
        "number": status.number,
        "name": status.name,
        "checkpoint": status.checkpoint,
        "streams": status.streams,
        "secondsBehind": each.seconds,
        "stream": status.stream,
        "shardId": status.shard,
        "trend": each.trend,
        "bytesProcessedPerSecond": each.processed,
        "recordsProcessedPerSecond": each.records_out,
        "recordsProcessed": status.records_done,
        "bytesProcessed": status.bytes_done,
        "waitingBytes": status.bytes,
        "waitingRecords": status.records,
        "heldBytes": status.held,
        "shardsApart": status.apart,
        "callsApartPerSecond": each.calls,
        "bytesApartPerSecond": each.apart,
        "shards": [
            {
                "stream": shard.stream,
                "shardId": shard.shard,
                "position": shard.done,
                "secondsBehind": None if shard.millis is None else shard.millis / 1000,
                "waitingBytes": shard.bytes,
                "waitingRecords": shard.records,
                "heldBytes": shard.held,
                "apart": shard.apart,
            }
            for shard in status.shards or ()
        ],
    }


def _shard(each: ShardPulse) -> dict[str, Any]:
    status, subscription = each.status, each.status.subscription
    return {
        "stream": status.stream,
        "shardId": status.shard,
        "state": state(each),
        "secondsBehind": each.seconds,
        "trend": each.trend,
        "caughtUpInSeconds": each.caught_up_in,
        "bytesInPerSecond": each.incoming,
        "bytesProcessedPerSecond": each.processed,
        "recordsInPerSecond": each.records_in,
        "recordsProcessedPerSecond": each.records_out,
        "dataInPerSecond": data_in(each.incoming, each.records_in),
        "dataProcessedPerSecond": data_in(each.processed, each.records_out),
        "bufferedBytes": status.buffered,
        "bufferedRecords": status.records,
        "waitingSeconds": status.waiting,
        "lastEventSeconds": None if subscription is None else subscription.age,
        "opened": None if subscription is None else subscription.opened,
        "failures": None if subscription is None else subscription.failures,
        "fetcher": status.fetcher,
        "cause": None if each.cause is None else each.cause.short,
    }
