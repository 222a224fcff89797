"""The contents of the web page of ``kinesis-efo top`` as plain data: the last observation, and the last hour. No I/O."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from kinesis_efo.records.events import data_in
from kinesis_efo.units import format_size
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.lease_runs import run_line
from kinesis_efo_tools.cli.shapes import Shape, duration, written_out
from kinesis_efo_tools.cli.top.axis import BYTES, RECORDS, SECONDS, axis
from kinesis_efo_tools.cli.top.figures import (
    STATE,
    Column,
    Tone,
    behind,
    columns,
    left_out,
    query_line,
    rate,
    remedies,
    stale,
    state,
    tone,
)
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.history import ALL, History, Point
from kinesis_efo_tools.operate.pulse import ShardPulse, Sum, View

MOST_ROWS: Final = 1_000
"""Maximum number of shards that the page lists for one stream; the slowest shards are listed."""

_SHAPE: Final = Shape(roomy=False)
_CHARTS: Final = (
    ("behind", SECONDS, ("the slowest shard",)),
    ("records", RECORDS, ("in", "out")),
    ("bytes", BYTES, ("in", "out")),
)


def document(application: str, look: Observation, history: History, since: float = 0.0) -> dict[str, Any]:
    """Return the contents of the page as plain data.

    `since` is the time (epoch seconds) of the newest point of the history that the page already has. Earlier points are omitted.
    """
    view = look.view
    points = history.since()
    found, word = _state(look)
    return {
        "application": application,
        "title": f"{application}: {word if view is None or look.trouble else behind(view.total())}",
        "tone": found.value,
        "word": word,
        "about": ", ".join(filter(None, [", ".join(look.owners) or "no run", written_out(look.at), stale(look)])),
        "trouble": look.trouble,
        "rows": _lines(look),
        "tiles": [] if view is None else _tiles(view),
        "streams": [] if view is None else [_stream(view, name, points) for name in _slow_first(view)],
        "charts": _charts(ALL, points),
        "remedies": [] if view is None else [each._asdict() for each in remedies(view)],
        "events": [{"at": written_out(at), "text": text} for at, text in reversed(look.events)],
        "stretch": history.stretch,
        "points": [_point(each) for each in history.since(since)],
    }


def _lines(look: Observation) -> list[str]:
    """Return a line for each query that the run reports; before the first reply, a line for each run in the lease table."""
    if look.view is not None:
        return [query_line(each) for each in look.view.queries]
    return [run_line(stream, row, look.at) for stream, row in look.runs.items()]


def _state(look: Observation) -> tuple[Tone, str]:
    """Summarize the state of the run as a severity and a short text."""
    if look.trouble:
        return Tone.BAD, "no answer"
    slow = 0 if look.view is None else sum(each.cause is not None for each in look.view.shards)
    return (Tone.BUSY, f"{output.count(slow, 'shard')} slow") if slow else (Tone.GOOD, "reading")


def _slow_first(view: View) -> list[str]:
    slow = {each.status.stream for each in view.shards if each.cause is not None}
    return sorted(view.streams, key=lambda name: (name not in slow, name))


def _tiles(view: View) -> list[dict[str, Any]]:
    total = view.total()
    full = view.buffered / view.room if view.room else 0.0
    tiles = [
        ("behind", "-" if total.seconds is None else duration(total.seconds), _slowest(view)),
        ("in", rate(total.incoming) or "-", _contents(total.incoming, total.records_in)),
        ("out", rate(total.processed) or "-", _contents(total.processed, total.records_out)),
        ("buffered", format_size(view.buffered), f"{full:.0%} of {format_size(view.room)}"),
        ("run", "-" if view.cpu is None else f"{view.cpu:.0%}", "of a core"),
    ]
    return [{"name": name, "text": text, "note": note} for name, text, note in tiles]


def _slowest(view: View) -> str:
    worst = max(view.shards, key=lambda each: each.seconds or 0.0, default=None)
    if worst is None or not worst.seconds:
        return f"of {output.count(len(view.shards), 'shard')}"
    return f"{worst.status.stream} {_SHAPE.shard(worst.status.shard)}"


def _contents(arrived: float | None, records: float | None) -> str:
    """Describe the incoming records: their number per second, and approximately the bytes of their data per second."""
    if records is None:
        return ""
    return f"{records:,.{0 if records >= 10 else 1}f} records/s, {rate(data_in(arrived, records))} of data"


def _stream(view: View, name: str, points: list[Point]) -> dict[str, Any]:
    shards = [each for each in view.shards if each.status.stream == name]
    kept = [each for each in columns(view) if each.title != "stream"]
    states = Counter(state(each) or "unknown" for each in shards)
    total = view.total(name)
    return {
        "name": name,
        "text": f"{output.count(total.shards, 'shard')}, {behind(total)}",
        "states": [{"tone": tone(word).value, "text": f"{number:,} {word}"} for word, number in sorted(states.items())],
        "heads": [{"text": each.title, "justify": each.justify, "spare": each.spare} for each in kept],
        "rows": [_row(each, kept) for each in shards[:MOST_ROWS]],
        "left": left_out(shards[MOST_ROWS:]) if len(shards) > MOST_ROWS else "",
        # The charts of a single stream would be the same as the charts of the whole run.
        "charts": _charts(name, points) if len(view.streams) > 1 else [],
    }


def _row(each: ShardPulse, kept: list[Column[ShardPulse]]) -> dict[str, Any]:
    texts = ("-" if (text := column.cell(each, _SHAPE)) is None else text for column in kept)
    return {
        "id": each.status.shard,
        "cells": list(texts),
        "state": kept.index(STATE),
        "tone": tone(state(each)).value,
        "slow": each.cause is not None,
    }


def _charts(key: str, points: list[Point]) -> list[dict[str, Any]]:
    """Return the titles and scales of the charts for a stream, or for all streams (`ALL`). Charts without figures are left out."""
    found, first = [], 0
    for title, units, series in _CHARTS:
        of_chart = slice(first, first + len(series))
        known = [
            figure
            for each in points
            if key in each.sums
            for figure in _figures(each.sums[key])[of_chart]
            if figure is not None
        ]
        if known:
            scale = axis(max(known), units).data()
            found.append({"title": title, "stream": key, "first": first, "series": series, **scale})
        first += len(series)
    return found


def _point(each: Point) -> dict[str, Any]:
    return {"at": each.at, "sums": {key: _figures(total) for key, total in each.sums.items()}}


def _figures(total: Sum) -> list[float | None]:
    """Return the figures for the charts, in the order of the series in `_CHARTS`."""
    figures = (total.seconds, total.records_in, total.records_out, total.incoming, total.processed)
    return [None if each is None else round(each, 2) for each in figures]
