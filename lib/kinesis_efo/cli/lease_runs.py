"""Shows what runs say of themselves in their rows: who holds the lease on a stream, and how far it is behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from kinesis_efo.cli import output
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.row import Lease
from kinesis_efo.operate.lag import State

STATE_STYLES = {State.READING: "green", State.SILENT: "bold red", State.FREE: "yellow", State.UNSTARTED: "yellow"}


def runs_table(runs: Mapping[str, Lease], states: Mapping[str, State] | None = None) -> Table:
    """The runs' leases with what they say of their lag.

    Args:
        runs: The runs' rows, by stream.
        states: Whether their owners are alive, by stream; None where that was not watched: their keys stand in its place.
    """
    columns = [
        "stream",
        *(["=state"] if states is not None else ["=key"]),
        "run",
        ">shards",
        ">behind",
        "=of shard",
        ">buffered",
    ]
    rows = []
    for stream, row in runs.items():
        lag = row.lag
        state = (
            [row.key]
            if states is None
            else [output.painted(states[stream].value, STATE_STYLES.get(states[stream], ""))]
        )
        behind = None if lag is None or lag.millis_behind is None else f"{lag.millis_behind / 1000:.1f} s"
        rows.append(
            (
                stream,
                *state,
                row.owner and readable(row.owner),
                None if lag is None else f"{lag.shards:,}",
                behind,
                None if lag is None else lag.shard,
                None if lag is None else f"{lag.buffered / 1e6:.1f} MB",
            )
        )
    return output.table(columns, rows, "what runs said with their last renewal")


def lag_data(run: Lease) -> dict[str, Any] | None:
    """What a run says of its lag, for JSON; None where it says nothing."""
    if run.lag is None:
        return None
    return {
        "shards": run.lag.shards,
        "millisBehindLatest": run.lag.millis_behind,
        "shardId": run.lag.shard,
        "bufferedBytes": run.lag.buffered,
    }
