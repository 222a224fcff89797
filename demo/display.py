"""Shows the run: as a live panel on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.box import SIMPLE
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.ledger import Verdict

_LINE_EVERY: Final = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """The progress to show.

    Attributes:
        phase: What the run does now, in a few words.
        total: Number of events of the whole run.
        put: Number of events that Kinesis has acknowledged.
        archived: Number of events in completed micro-batches.
        put_rate: Bytes put per second.
        archived_rate: Events archived per second.
        batch: Id of the last completed micro-batch; -1 before the first.
        lag: Number of events not archived yet, by stream.
    """

    phase: str
    total: int
    put: int
    archived: int
    put_rate: float
    archived_rate: float
    batch: int
    lag: Mapping[str, int]


class Display:
    """Shows the progress. A context manager.

    Args:
        console: The console to show it on.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self._began = time.monotonic()
        self._line_at = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(
            f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {text}", highlight=False, soft_wrap=True
        )

    def show(self, view: View) -> None:
        """Update the panel; without a terminal, print a line every few seconds."""
        if self._live:
            self._live.update(_panel(view))
        elif time.monotonic() - self._line_at >= _LINE_EVERY:
            self._line_at = time.monotonic()
            behind = sum(view.lag.values())
            self.say(
                f"{view.phase}: put {view.put:,} ({view.put_rate / 1e6:.2f} MB/s), archived {view.archived:,} "
                f"({view.archived_rate:,.0f}/s), micro-batch {view.batch}, {behind:,} behind"
            )


def _panel(view: View) -> Group:
    flow = Table.grid(padding=(0, 2))
    flow.add_row("events in", _bar(view.put, view.total), f"{view.put:,}", f"{view.put_rate / 1e6:.2f} MB/s")
    flow.add_row("events out", _bar(view.archived, view.total), f"{view.archived:,}", f"{view.archived_rate:,.0f}/s")
    worst = max([1000, *view.lag.values()])
    lag = Table.grid(padding=(0, 2))
    for stream, behind in sorted(view.lag.items()):
        lag.add_row(stream, _bar(behind, worst), f"{behind:,} behind")
    batch = "none yet" if view.batch < 0 else str(view.batch)
    return Group(Text(f"\n{view.phase}", style="bold"), flow, Text(f"last micro-batch: {batch}\n"), lag)


def _bar(part: int, whole: int) -> ProgressBar:
    return ProgressBar(total=max(whole, 1), completed=part, width=40)


def report(console: Console, verdicts: Sequence[Verdict], sentences: Sequence[tuple[bool, str]], chart: Path) -> None:
    """Print the comparison as a table, the path of the picture, and each verdict in one line.

    Args:
        console: Where to.
        verdicts: What was put and what is archived.
        sentences: The verdicts: whether it is a good one, and the line.
        chart: The picture.
    """
    table = Table(
        title="What was put, and what is in Parquet",
        title_justify="left",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in ("stream", "put", "archived", "distinct", "lost", "too many", "checksum"):
        table.add_column(name, justify="left" if name == "stream" else "right", no_wrap=True)
    for verdict in verdicts:
        style = None if verdict.exact else "bold red"
        table.add_row(
            verdict.stream,
            f"{verdict.put.count:,}",
            f"{verdict.archived.count:,}",
            f"{verdict.archived.distinct:,}",
            f"{verdict.lost:,}",
            f"{verdict.surplus:,}",
            checksums(verdict),
            style=style,
        )
    console.print(table)
    console.print(f"backlog and throughput: {chart}", highlight=False, soft_wrap=True)
    for good, sentence in sentences:
        console.print(sentence, style="bold green" if good else "bold red", highlight=False, soft_wrap=True)


def checksums(verdict: Verdict) -> str:
    """The checksums of both sides, as one if they are equal."""
    put, archived = verdict.put.checksum, verdict.archived.checksum
    return f"= {put:016x}" if put == archived else f"{put:016x} != {archived:016x}"
