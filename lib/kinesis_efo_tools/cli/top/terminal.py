"""Formats an observation of ``kinesis-efo top`` for a terminal of any size. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.lease_runs import runs_table
from kinesis_efo_tools.cli.shapes import Shape
from kinesis_efo_tools.cli.top.figures import (
    STATE,
    Column,
    Tone,
    buffered_line,
    columns,
    left_out,
    query_columns,
    remedies,
    stale,
    state,
    stream_line,
    tone,
)
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.pulse import ShardPulse, View

_EVENTS: Final = 3
_BETWEEN: Final = 2
_STYLES: Final = {Tone.GOOD: "green", Tone.BUSY: "yellow", Tone.BAD: "bold red", Tone.PLAIN: ""}


def show(application: str, look: Observation, width: int, height: int) -> RenderableType:
    """Format an observation for a terminal. Shards that do not fit into `height` lines are summarized in one line."""
    shape = Shape.of(width)
    view = look.view
    parts: list[RenderableType] = [_title(application, look, shape)]
    if look.trouble:
        parts.append(output.text(look.trouble, "bold red", one_line=True))
    if view is None:
        return Group(*parts, "", runs_table(look.runs, shape, look.at))
    parts += [output.text(stream_line(each, view.total(each))) for each in view.streams]
    parts += [output.text(buffered_line(view)), ""]
    most = max(2, height // 5)
    if view.queries:
        parts += [*_queries(view, shape, width, most), ""]
    events, causes = look.events[-_EVENTS:], remedies(view)
    # Each remedy takes two lines. The table's header, the line about omitted shards, and empty lines together take five.
    room = height - len(parts) - min(len(view.queries), most) - len(events) - 2 * len(causes) - 5
    table, left = _shards(view, shape, width, max(1, room))
    parts.append(table)
    if left:
        parts.append(output.text(left_out(left), "dim"))
    if causes:
        parts += ["", *(output.text(f"{each.text} ({each.page})", "red") for each in causes)]
    if events:
        parts.append("")
        parts += [output.text(f"{shape.time(at, look.at)}  {text}", "dim", one_line=True) for at, text in events]
    return Group(*parts)


def _title(application: str, look: Observation, shape: Shape) -> Text:
    title = output.text(f"{application}  {shape.time(look.at, look.at)}", "bold", one_line=True)
    title.append(f"  {', '.join(look.owners) or 'no run'}", "not bold")
    if (old := stale(look)) is not None:
        title.append(f"  {old}", "bold red")
    return title


def _queries(view: View, shape: Shape, width: int, room: int) -> list[RenderableType]:
    """Return a table of the queries. If there are more than `room`, the table has the slowest, and a line summarizes the others."""
    if len(view.queries) <= room:
        return [_table(query_columns(view), view.queries, shape, width)]
    slowest = sorted(view.queries, key=lambda each: -(each.seconds or 0.0))
    shown = sorted(slowest[: room - 1], key=view.queries.index)
    more = f"and {len(view.queries) - len(shown):,} queries more, none further behind"
    return [_table(query_columns(view), shown, shape, width), output.text(more, "dim")]


def _shards(view: View, shape: Shape, width: int, room: int) -> tuple[Table, list[ShardPulse]]:
    """Return a table of the first `room` shards, and the shards that are left out."""
    shown, left = view.shards[:room], list(view.shards[room:])
    return _table(columns(view), shown, shape, width), left


def _table(kept: list[Column[Any]], shown: Sequence[Any], shape: Shape, width: int) -> Table:
    """Create a table with the rows `shown`. Omits columns that do not fit into `width`."""
    cells = {each.title: [each.cell(row, shape) for row in shown] for each in kept}
    while _needed(kept, cells) > width and (spare := max(kept, key=lambda each: each.spare)).spare:
        kept.remove(spare)
    table = Table(box=None, pad_edge=False, padding=(0, _BETWEEN, 0, 0), header_style="bold")
    for column in kept:
        table.add_column(column.title, justify=column.justify, no_wrap=True, overflow="ellipsis")
    for index, each in enumerate(shown):
        row = (_painted(column, cells[column.title][index], each) for column in kept)
        table.add_row(*row, style="red" if isinstance(each, ShardPulse) and each.cause is not None else "")
    return table


def _painted(column: Column[Any], text: str | None, each: Any) -> Text | str:
    if text is None:
        return "-"
    return output.text(text, _STYLES[tone(state(each))] if column is STATE else "")


def _needed(kept: Sequence[Column[Any]], cells: Mapping[str, Sequence[str | None]]) -> int:
    """Return the width that the columns need in total."""
    widths = (max([len(each.title), *(len(cell or "-") for cell in cells[each.title])]) for each in kept)
    return sum(widths) + _BETWEEN * (len(kept) - 1)
