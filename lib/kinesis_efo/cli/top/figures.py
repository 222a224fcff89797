"""What ``kinesis-efo top`` tells of a run, on a terminal and as a page: columns, sums, states, remedies. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from kinesis_efo.cli import output
from kinesis_efo.cli.shapes import Shape, duration, written_out
from kinesis_efo.kinesis.sizes import data_in
from kinesis_efo.operate.following import Look
from kinesis_efo.operate.pulse import Cause, ShardPulse, Sum, View
from kinesis_efo.units import format_size

RUNBOOK: Final = "docs/runbook.md"

_STALE_SECONDS: Final = 5.0
_STEADY: Final = 0.02


class Tone(Enum):
    """How a state is to be taken; terminal and page have a colour for each."""

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
    """What the shard's subscription is doing; None where that is not known."""
    return None if each.status.subscription is None else each.status.subscription.state


def tone(name: str | None) -> Tone:
    """How a subscription's state is to be taken."""
    return _TONES.get(name or "", Tone.PLAIN)


class Column(NamedTuple):
    """A column of the table of shards.

    Attributes:
        title: Its head.
        cell: The text for a shard; None where it is not known.
        justify: Where its texts stand.
        spare: Where there is no room, the column with the highest number goes first; 0 stays.
    """

    title: str
    cell: Callable[[ShardPulse, Shape], str | None]
    justify: Literal["left", "right"] = "left"
    spare: int = 0


def columns(view: View) -> list[Column]:
    """The columns that tell the shards of a run apart."""
    needless = {
        "stream": len(view.streams) == 1,
        "fetcher": not any(each.status.fetcher for each in view.shards),
    }
    return [each for each in _COLUMNS if not needless.get(each.title)]


def _behind(each: ShardPulse, _: Shape) -> str | None:
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
    """Its number, and where there is room, its host."""
    name = each.status.fetcher
    return name if name is None or shape.roomy else name.partition(" ")[0]


def _counted(each: ShardPulse, name: Literal["opened", "failures"]) -> str | None:
    return None if each.status.subscription is None else f"{getattr(each.status.subscription, name):,}"


STATE: Final = Column("state", lambda each, _: state(each))

_COLUMNS: Final = (
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


def rate(bytes_per_second: float | None, unit: str = "/s") -> str | None:
    """A number of bytes a second; None where it is not known."""
    return None if bytes_per_second is None else f"{format_size(round(bytes_per_second))}{unit}"


def behind(total: Sum) -> str:
    """How far some shards are behind, in words."""
    return "not heard from yet" if total.seconds is None else f"{duration(total.seconds)} behind"


def stream_line(stream: str, total: Sum) -> str:
    """A stream's shards in one line."""
    return (
        f"{stream}: {output.count(total.shards, 'shard')}, {behind(total)}, "
        f"in {rate(total.incoming)}, processed {rate(total.processed)}"
    )


def buffered_line(view: View) -> str:
    """What is buffered, and what the planner's process needs, in one line."""
    return f"buffered {format_size(view.buffered)} of {format_size(view.room)}" + (
        "" if view.cpu is None else f"; planner {view.cpu:.0%} of a core"
    )


def left_out(left: list[ShardPulse]) -> str:
    """The shards for which there is no room, in one line."""
    known = [each.seconds for each in left if each.seconds is not None]
    return f"and {output.count(len(left), 'shard')} more" + (
        f", none further behind than {duration(max(known))}" if known else ""
    )


def stale(look: Look) -> str | None:
    """How old the figures are, in words; None where they are new."""
    age = 0.0 if look.said is None else look.at - look.said
    return f"as of {duration(age)} ago" if age > _STALE_SECONDS else None


def remedies(view: View) -> list[str]:
    """A line for each cause that there is: what is wrong with which shards, what to do, and where the runbook says more."""
    lines = []
    for cause in Cause:
        shards = sum(each.cause is cause for each in view.shards)
        if shards:
            lines.append(
                f"{cause.short}: {cause.what} ({output.count(shards, 'shard')}). "
                f"What to do: {cause.remedy} ({RUNBOOK}#{cause.section})"
            )
    return lines


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else duration(seconds)


def data(application: str, look: Look) -> dict[str, Any]:
    """A look as plain data, for scripts."""
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
        "shards": [] if view is None else [_shard(each) for each in view.shards],
        "causes": [
            {"name": cause.short, "what": cause.what, "remedy": cause.remedy, "runbook": f"{RUNBOOK}#{cause.section}"}
            for cause in Cause
        ],
        "events": [{"at": written_out(at), "text": text} for at, text in look.events],
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
