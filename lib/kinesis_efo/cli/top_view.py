"""What ``kinesis-efo top`` shows of a look: for a terminal of any size, and as plain data. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kinesis_efo.cli import output
from kinesis_efo.cli.lease_runs import runs_table
from kinesis_efo.cli.shapes import Shape, duration, size, written_out
from kinesis_efo.operate.following import Look
from kinesis_efo.operate.pulse import Cause, ShardPulse, View

RUNBOOK: Final = "docs/runbook.md"

_EVENTS: Final = 3
_STALE_SECONDS: Final = 5.0
_STEADY: Final = 0.02
_BETWEEN: Final = 2
_STATES: Final = {
    "streaming": "green",
    "failed": "bold red",
    "waiting": "yellow",
    "paused": "yellow",
    "opening": "yellow",
}


def show(application: str, look: Look, width: int, height: int) -> RenderableType:
    """A look as it fills a terminal.

    Args:
        application: Name of the application.
        look: The look.
        width: Columns.
        height: Lines; shards that do not fit are summed up.
    """
    shape = Shape.of(width)
    view = look.view
    parts: list[RenderableType] = [_title(application, look, shape)]
    if look.trouble:
        parts.append(Text(look.trouble, "bold red", overflow="ellipsis", no_wrap=True))
    if view is None:
        return Group(*parts, Text(), runs_table(look.runs, shape, look.at))
    parts += [*_totals(view), Text()]
    events, remedies = look.events[-_EVENTS:], _remedies(view)
    # Beside the shards: the table's head, the line on those left out, and the empty lines. A remedy may take two lines.
    room = height - len(parts) - len(events) - 2 * len(remedies) - 5
    table, left = _shards(view, shape, width, max(1, room))
    parts.append(table)
    if left:
        parts.append(Text(_left_out(left), "dim"))
    parts += [Text(), *remedies] if remedies else []
    if events:
        parts.append(Text())
        parts += [
            Text(f"{shape.time(at, look.at)}  {text}", "dim", overflow="ellipsis", no_wrap=True) for at, text in events
        ]
    return Group(*parts)


def _title(application: str, look: Look, shape: Shape) -> Text:
    title = Text(f"{application}  {shape.time(look.at, look.at)}", "bold", overflow="ellipsis", no_wrap=True)
    title.append(f"  {', '.join(look.owners) or 'no run'}", "not bold")
    if look.said is not None and look.at - look.said > _STALE_SECONDS:
        title.append(f"  as of {duration(look.at - look.said)} ago", "bold red")
    return title


def _totals(view: View) -> list[Text]:
    lines = []
    for stream in view.streams:
        shards = [each for each in view.shards if each.status.stream == stream]
        incoming, processed = view.total(stream)
        known = [each.seconds for each in shards if each.seconds is not None]
        behind = f"{duration(max(known))} behind" if known else "not heard from yet"
        lines.append(
            Text(
                f"{stream}: {output.count(len(shards), 'shard')}, {behind}, in {_rate(incoming)}, processed {_rate(processed)}"
            )
        )
    cpu = "" if view.cpu is None else f"; planner {view.cpu:.0%} of a core"
    lines.append(Text(f"buffered {size(view.buffered)} of {size(view.room)}{cpu}"))
    return lines


def _shards(view: View, shape: Shape, width: int, room: int) -> tuple[Table, list[ShardPulse]]:
    """The table of as many shards as there is room for, and those that are left out."""
    shown, left = view.shards[:room], list(view.shards[room:])
    needless = {
        "stream": len(view.streams) == 1,
        "fetcher": not any(each.status.fetcher for each in view.shards),
    }
    columns = [each for each in _COLUMNS if not needless.get(each.title)]
    cells = {each.title: [each.cell(shard, shape) for shard in shown] for each in columns}
    while _needed(columns, cells) > width and (spare := max(columns, key=lambda each: each.spare)).spare:
        columns.remove(spare)
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify=column.justify, no_wrap=True, overflow="ellipsis")
    for index, each in enumerate(shown):
        row = [cells[column.title][index] for column in columns]
        table.add_row(*("-" if cell is None else cell for cell in row), style="" if each.cause is None else "red")
    return table, left


def _needed(columns: Sequence[_Column], cells: Mapping[str, Sequence[Text | str | None]]) -> int:
    """The width that columns need."""
    widths = (max([len(each.title), *(len(cell or "-") for cell in cells[each.title])]) for each in columns)
    return sum(widths) + _BETWEEN * (len(columns) - 1)


def _remedies(view: View) -> list[Text]:
    """A line for each cause that there is: what is wrong with which shards, what to do, and where the runbook says more."""
    lines = []
    for cause in Cause:
        shards = [each.status.key for each in view.shards if each.cause is cause]
        if shards:
            text = f"{cause.short}: {cause.what} ({output.count(len(shards), 'shard')}). What to do: {cause.remedy} ({RUNBOOK}#{cause.section})"
            lines.append(Text(text, "red"))
    return lines


def _left_out(left: list[ShardPulse]) -> str:
    known = [each.seconds for each in left if each.seconds is not None]
    return f"and {output.count(len(left), 'shard')} more" + (
        f", none further behind than {duration(max(known))}" if known else ""
    )


class _Column(NamedTuple):
    title: str
    cell: Callable[[ShardPulse, Shape], Text | str | None]
    justify: Literal["left", "right"] = "left"
    spare: int = 0
    """Where there is no room, the column with the highest number goes first; 0 stays."""


def _state(each: ShardPulse, _: Shape) -> Text | str | None:
    state = each.status.subscription.state if each.status.subscription is not None else None
    return None if state is None else output.painted(state, _STATES.get(state, ""))


def _behind(each: ShardPulse, _: Shape) -> str | None:
    if each.seconds is None:
        return None
    trend = each.trend or 0.0
    arrow = (
        " " if abs(trend) < _STEADY or each.seconds < 1 else "\N{UPWARDS ARROW}" if trend > 0 else "\N{DOWNWARDS ARROW}"
    )
    return f"{duration(each.seconds)} {arrow}"


def _caught_up(each: ShardPulse, _: Shape) -> str | None:
    return None if each.caught_up_in is None else duration(each.caught_up_in)


def _age(each: ShardPulse, shape: Shape) -> str | None:
    subscription = each.status.subscription
    return None if subscription is None or subscription.age is None else shape.ago(subscription.age)


def _waits(each: ShardPulse, _: Shape) -> str | None:
    return None if each.status.waiting is None else duration(each.status.waiting)


def _fetcher(each: ShardPulse, shape: Shape) -> str | None:
    """Its number, and where there is room, its host."""
    name = each.status.fetcher
    return name if name is None or shape.roomy else name.partition(" ")[0]


def _counted(each: ShardPulse, name: Literal["opened", "failures"]) -> str | None:
    return None if each.status.subscription is None else f"{getattr(each.status.subscription, name):,}"


_COLUMNS: Final = (
    _Column("stream", lambda each, _: each.status.stream),
    _Column("shard", lambda each, shape: shape.shard(each.status.shard)),
    _Column("state", _state),
    _Column("behind", _behind, "right"),
    _Column("left", _caught_up, "right", spare=2),
    _Column("in/s", lambda each, _: _rate(each.incoming, ""), "right"),
    _Column("out/s", lambda each, _: _rate(each.processed, ""), "right"),
    _Column("buffered", lambda each, _: size(each.status.buffered), "right", spare=1),
    _Column("waits", _waits, "right", spare=4),
    _Column("last event", _age, "right", spare=5),
    _Column("opened", lambda each, _: _counted(each, "opened"), "right", spare=7),
    _Column("failed", lambda each, _: _counted(each, "failures"), "right", spare=6),
    _Column("fetcher", _fetcher, spare=3),
    _Column("slow", lambda each, _: "" if each.cause is None else each.cause.short),
)


def _rate(bytes_per_second: float | None, unit: str = "/s") -> str | None:
    return None if bytes_per_second is None else f"{size(round(bytes_per_second))}{unit}"


def data(application: str, look: Look) -> dict[str, Any]:
    """A look as plain data, for JSON and for the page."""
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
        "state": None if subscription is None else subscription.state,
        "secondsBehind": each.seconds,
        "trend": each.trend,
        "caughtUpInSeconds": each.caught_up_in,
        "bytesInPerSecond": each.incoming,
        "bytesProcessedPerSecond": each.processed,
        "bufferedBytes": status.buffered,
        "bufferedRecords": status.records,
        "waitingSeconds": status.waiting,
        "lastEventSeconds": None if subscription is None else subscription.age,
        "opened": None if subscription is None else subscription.opened,
        "failures": None if subscription is None else subscription.failures,
        "fetcher": status.fetcher,
        "cause": None if each.cause is None else each.cause.short,
    }
