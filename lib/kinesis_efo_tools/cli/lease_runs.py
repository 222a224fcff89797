"""Formats the leases of runs: the owner of the lease on each stream, and the run's lag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo.units import format_size
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.shapes import Shape, duration, written_out
from kinesis_efo_tools.operate.lag import ReaderState

STATE_STYLES = {
    ReaderState.READING: "green",
    ReaderState.SILENT: "bold red",
    ReaderState.FREE: "yellow",
    ReaderState.UNSTARTED: "yellow",
}


def runs_table(
    runs: Mapping[str, Lease], shape: Shape, now: float, states: Mapping[str, ReaderState] | None = None
) -> Table:
    """Format the runs' leases and lags as a table.

    The keys of `runs` and `states` are streams. Without `states`, the table shows lease keys instead. `now` is in epoch seconds.
    """
    watched = states is not None
    columns = [
        "stream",
        "=state" if watched else "=key",
        "run",
        ">shards",
        ">behind",
        "=shard",
        ">buffered",
        ">said",
    ]
    rows = []
    for stream, row in runs.items():
        lag = row.lag
        state: str | Text = (
            row.key if states is None else output.text(states[stream].value, STATE_STYLES.get(states[stream], ""))
        )
        seconds = None if lag is None else _seconds_behind(lag, now)
        behind = None if seconds is None else duration(seconds)
        rows.append(
            (
                stream,
                state,
                row.owner and readable(row.owner),
                None if lag is None else f"{lag.shards:,}",
                behind,
                None if lag is None or lag.shard is None else shape.shard(lag.shard),
                None if lag is None else format_size(lag.buffered),
                None if lag is None or lag.at is None else shape.ago(max(0.0, now - lag.at / 1000)),
            )
        )
    return output.table(columns, rows, "what runs said with their last renewal")


def run_line(stream: str, run: Lease, now: float) -> str:
    """Format a run's lease and lag in one line. `stream` is the logical name; `now` is in epoch seconds."""
    line = f"{stream}: {readable(run.owner) if run.owner else 'read by no run'}"
    if run.lag is None:
        return line
    line += f", {output.count(run.lag.shards, 'shard')}"
    if (seconds := _seconds_behind(run.lag, now)) is not None:
        line += f", {duration(seconds)} behind"
    return line + ("" if run.lag.at is None else f", as of {duration(max(0.0, now - run.lag.at / 1000))} ago")


def lag_data(run: Lease) -> dict[str, Any] | None:
    """Convert a run's lag to plain data, for JSON; None if the run's row has no lag."""
    if run.lag is None:
        return None
    return {
        "shards": run.lag.shards,
        "millisBehindLatest": run.lag.millis_behind,
        "shardId": run.lag.shard,
        "bufferedBytes": run.lag.buffered,
        "bufferedRecords": run.lag.records,
        "at": None if run.lag.at is None else written_out(run.lag.at / 1000),
    }


def _seconds_behind(lag: Lag, now: float) -> float | None:
    """Return the lag in seconds at `now` (epoch seconds), assuming that nothing was processed since the lag was measured.

    >>> _seconds_behind(Lag(1, 0, 20_000, "shardId-000000000000", at=100_000), 105.0)
    25.0
    """
    if lag.millis_behind is None:
        return None
    return lag.millis_behind / 1000 + (0.0 if lag.at is None else max(0.0, now - lag.at / 1000))
