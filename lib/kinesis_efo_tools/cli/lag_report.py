"""The output of ``kinesis-efo lag``, as tables and as plain data. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kinesis_efo.errors import StreamError
from kinesis_efo.fetcher.status import QueryStatus
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.lease_runs import STATE_STYLES, lag_data, runs_table
from kinesis_efo_tools.cli.shapes import Shape, duration, written_out
from kinesis_efo_tools.operate.lag import ReaderState, ShardLag


@dataclass(frozen=True)
class LagReport:
    """The lag of one application at one moment.

    Attributes:
        application: The application's name.
        at: The time of the report, in epoch seconds.
        runs: The runs' rows in the lease table, by stream.
        states: Whether the runs' owners are alive, by stream.
        asked: The streams whose run replied to a status request.
        shards: The lag of each shard.
        reported: The lag in CloudWatch in milliseconds, by stream.
        remarks: Messages for the user.
        missing: The errors of streams that are not shown, by stream.
        queries: The status of the queries, by stream. A stream has no entry if its run has only one query, which is not catching up.
    """

    application: str
    at: float
    runs: Mapping[str, Lease]
    states: Mapping[str, ReaderState]
    asked: frozenset[str]
    shards: Sequence[ShardLag]
    reported: Mapping[str, int]
    remarks: Sequence[str]
    missing: Mapping[str, StreamError] = field(default_factory=dict)
    queries: Mapping[str, Sequence[QueryStatus]] = field(default_factory=dict)

    @property
    def behind(self) -> float | None:
        """The lag of the slowest shard in seconds; None if no lag is known."""
        return max((row.seconds for row in self.shards if row.seconds is not None), default=None)


def within(reports: Sequence[LagReport], threshold: float) -> bool:
    """Whether the lag of every shard is known and at most `threshold` seconds. Ignores shards that wait for their parents."""
    rows = [row for report in reports for row in report.shards if row.state is not ReaderState.WAITING]
    return not any(report.missing for report in reports) and all(
        row.seconds is not None and row.seconds <= threshold for row in rows
    )


def view(reports: Sequence[LagReport], width: int) -> RenderableType:
    """Format the reports as tables, the slowest shard first. `width` is the terminal's width in columns."""
    shape = Shape.of(width)
    parts: list[RenderableType] = []
    for report in reports:
        parts += [_title(report), *_summary(report, shape), "", _table(report, shape), ""]
        if report.runs:
            parts += [runs_table(report.runs, shape, report.at, report.states), ""]
    return Group(*parts[:-1])


def _title(report: LagReport) -> Text:
    saw = [f"{name} {milliseconds / 1000:.1f} s" for name, milliseconds in sorted(report.reported.items())]
    seen = f"CloudWatch saw at most {', '.join(saw)}" if saw else "no figures in CloudWatch"
    return output.text(f"{report.application} at {written_out(report.at)}; {seen}", "bold")


def _summary(report: LagReport, shape: Shape) -> list[Text]:
    """Return a line for each stream: its lag, its slowest shard, and where the positions come from."""
    lines = []
    for stream in sorted({row.key.stream for row in report.shards}):
        rows = [row for row in report.shards if row.key.stream == stream]
        known = [(row.seconds, row) for row in rows if row.seconds is not None]
        text, whose = f"{stream}: {output.count(len(rows), 'shard')}", ""
        if known:
            worst, row = max(known, key=lambda each: each[0])
            whose = _whose(report, stream, row)
            text += f", {_at_most(row)}{duration(worst)} behind" + (
                f" (shard {shape.shard(row.key.shard)})" if len(rows) > 1 and worst > 0 else ""
            )
        records = [row.records for row in rows if row.records is not None]
        if records:
            more = len(records) < len(rows) or not all(row.records_exact for row in rows)
            text += f", {sum(records):,}{'+' if more else ''} unread"
        lines.append(output.text(f"{text}; positions {_source(report, stream)}{whose}"))
    return lines


def _whose(report: LagReport, stream: str, worst: ShardLag) -> str:
    """Return the part of the summary that names the slowest query; empty if fewer than two queries read the stream."""
    queries = report.queries.get(stream, ())
    if len(queries) < 2:
        return ""
    slowest = next((each.label for each in queries if each.number == worst.query), None)
    return f", of the slowest of {len(queries)} queries" + ("" if slowest is None else f": {slowest}")


def _source(report: LagReport, stream: str) -> str:
    if stream in report.asked:
        return "from the run itself"
    ages = [row.age for row in report.shards if row.key.stream == stream and row.age is not None]
    return "from the lease table" + (f", up to {duration(max(ages))} old" if ages else "")


def _table(report: LagReport, shape: Shape) -> RenderableType:
    rows = sorted(report.shards, key=lambda row: (-1.0 if row.seconds is None else -row.seconds, row.key))
    # Show owners only for KCL applications, in which each shard has an owner. The owners of runs are in a separate table.
    owners = any(row.owner is not None and row.owner != _owner(report, row) for row in rows)
    columns = [
        "stream",
        "=shard",
        "=state",
        "read until",
        ">moved",
        ">unread",
        ">behind",
        *(["owner"] if owners else []),
    ]
    cells = [
        [
            row.key.stream,
            shape.shard(row.key.shard),
            output.text(row.state.value, STATE_STYLES.get(row.state, "")),
            _position(row, report.at, shape),
            _moved(row, shape),
            None if row.records is None else f"{row.records:,}{'' if row.records_exact else '+'}",
            None if row.seconds is None else f"{_at_most(row)}{duration(row.seconds)}",
            *([row.owner and readable(row.owner)] if owners else []),
        ]
        for row in rows
    ]
    return output.table(columns, cells)


def _owner(report: LagReport, row: ShardLag) -> str | None:
    run = report.runs.get(row.key.stream)
    return run.owner if run is not None else None


def _at_most(row: ShardLag) -> str:
    return "" if row.seconds_exact else "< "


def _position(row: ShardLag, now: float, shape: Shape) -> str | None:
    if row.read_until is not None:
        return shape.time(row.read_until, now)
    return None if row.position is None else shape.position(str(row.position))


def _moved(row: ShardLag, shape: Shape) -> str | None:
    still_for, seen = row.movement
    return None if still_for is None else f"{'' if seen else '> '}{shape.ago(still_for)}"


def data(reports: Sequence[LagReport]) -> dict[str, Any]:
    """Convert the reports to plain data, for JSON."""
    return {
        "applications": [
            {
                "application": report.application,
                "at": written_out(report.at),
                "secondsBehind": report.behind,
                "cloudWatchMillisBehindLatest": dict(report.reported),
                "runs": [
                    {
                        "stream": name,
                        "owner": run.owner,
                        "state": report.states[name].value,
                        "asked": name in report.asked,
                        "lag": lag_data(run),
                    }
                    for name, run in report.runs.items()
                ],
                "queries": [
                    {
                        "stream": stream,
                        "number": query.number,
                        "name": query.name,
                        "checkpoint": query.checkpoint,
                        "millisBehindLatest": query.millis,
                        "shardsApart": query.apart,
                    }
                    for stream, queries in report.queries.items()
                    for query in queries
                ],
                "shards": [_row(row) for row in report.shards],
                "remarks": list(report.remarks),
                "missing": output.missing_data(report.missing),
            }
            for report in reports
        ]
    }


def _row(row: ShardLag) -> dict[str, Any]:
    return {
        "stream": row.key.stream,
        "shardId": row.key.shard,
        "state": row.state.value,
        "position": None if row.position is None else str(row.position),
        "positionAgeSeconds": row.age,
        "readUntil": None if row.read_until is None else written_out(row.read_until),
        "secondsStill": row.movement.still_for,
        "seenMoving": row.movement.seen,
        "recordsBehind": row.records,
        "recordsExact": row.records_exact,
        "secondsBehind": row.seconds,
        "secondsExact": row.seconds_exact,
        "owner": row.owner,
        "query": row.query,
    }
