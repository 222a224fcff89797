"""The report of a soak: a table, and a JSON file with the same figures."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass
class Report:
    """The figures of a soak.

    Attributes:
        seconds: How long records were written.
        records: Number of records, each read once and in order.
        bytes: Size of their data, bytes.
        batches: Number of micro-batches.
        faults: Number of faults, by target and kind.
        reshards: Number of splits and merges.
        shards: Number of shards in all.
        kills: Number of SIGKILLs of the driver.
        modes: How each run of the driver reads: its transport, or that it polls, and its fetchers.
        largest_lag: The longest time from put to commit, seconds.
        largest_backlog: The largest number of records not read yet.
        peak_memory: Largest memory of the process that reads, bytes.
        peak_files: Its largest number of open files.
        peak_threads: Its largest number of threads.
        violations: Everything that was not as it must be; empty if the soak passed.
    """

    seconds: float = 0.0
    records: int = 0
    bytes: int = 0
    batches: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reshards: Counter[str] = field(default_factory=Counter)
    shards: int = 0
    kills: int = 0
    modes: list[str] = field(default_factory=list)
    largest_lag: float = 0.0
    largest_backlog: int = 0
    peak_memory: int = 0
    peak_files: int = 0
    peak_threads: int = 0
    violations: list[str] = field(default_factory=list)


def save(report: Report, directory: Path) -> None:
    """Write `soak.json`."""
    (directory / "soak.json").write_text(json.dumps(vars(report), indent=2) + "\n")


def show(report: Report, console: Console, directory: Path) -> None:
    """Print the table and the verdict."""
    table = Table(title="soak", show_header=False)
    for name, value in (
        ("written for", f"{report.seconds / 60:.1f} min"),
        ("records, each once and in order", f"{report.records:,}"),
        ("bytes", f"{report.bytes:,}"),
        ("micro-batches", f"{report.batches:,}"),
        ("faults", f"{report.faults.total():,}"),
        *((f"  {kind}", str(count)) for kind, count in sorted(report.faults.items())),
        ("reshards", ", ".join(f"{count} {kind}" for kind, count in sorted(report.reshards.items())) or "none"),
        ("shards in all", str(report.shards)),
        ("SIGKILLs of the driver", str(report.kills)),
        ("runs", "; ".join(report.modes)),
        ("largest lag, put to commit", f"{report.largest_lag:.1f} s"),
        ("largest backlog", f"{report.largest_backlog:,} records"),
        ("reader: peak memory", f"{report.peak_memory >> 20} MiB"),
        ("reader: most files, threads", f"{report.peak_files}, {report.peak_threads}"),
    ):
        table.add_row(name, value)
    console.print(table)
    console.print(f"figures: {directory}")
    for violation in report.violations:
        console.print(f"FAILED: {violation}", style="bold red", markup=False)
    if not report.violations:
        console.print("passed: nothing lost, doubled or out of order; nothing grew", style="bold green")
