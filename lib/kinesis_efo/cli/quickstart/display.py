"""Shows a run of the quickstart: as a live panel on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

_LINE_EVERY: Final = 2.0
_RATE_OVER: Final = 5.0


@dataclass(frozen=True, slots=True)
class View:
    """What there is to show.

    Attributes:
        records_in: Number of records that Kinesis has.
        rows_read: Rows that the program has read.
        rows_out: Rows that it has written.
        behind_millis: How far it is behind; None where that is not known.
        batch: Its last micro-batch; None before the first.
        rows: The latest rows that it has printed.
    """

    records_in: int = 0
    rows_read: int = 0
    rows_out: int = 0
    behind_millis: int | None = None
    batch: int | None = None
    rows: Sequence[str] = ()


@dataclass(slots=True)
class Rate:
    """How fast a number grows, over the last seconds."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def of(self, number: int, now: float) -> float:
        """The growth a second, with what the number is now.

        >>> rate = Rate()
        >>> rate.of(10, 0.0), rate.of(30, 2.0)
        (0.0, 10.0)
        """
        self._seen.append((now, number))
        while now - self._seen[0][0] > _RATE_OVER:
            self._seen.popleft()
        began, before = self._seen[0]
        return (number - before) / (now - began) if now > began else 0.0


class Display:
    """Shows the run. A context manager.

    Args:
        console: Where.
        program: Name of the program.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, console: Console, program: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._program, self._clock = console, program, clock
        self._live = Live(console=console, refresh_per_second=8) if console.is_terminal else None
        self._rates = (Rate(), Rate(), Rate())
        self._line_at = -_LINE_EVERY

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line, above the panel."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, view: View) -> None:
        """Update the panel; without a terminal, print a line every few seconds."""
        now = self._clock()
        numbers = (view.records_in, view.rows_read, view.rows_out)
        rates = [rate.of(number, now) for rate, number in zip(self._rates, numbers, strict=True)]
        if self._live is not None:
            self._live.update(self._panel(view, rates))
        elif now - self._line_at >= _LINE_EVERY:
            self._line_at = now
            self.say(
                f"records in {view.records_in:,}, rows read {view.rows_read:,}, rows out {view.rows_out:,}, {_behind(view)}"
            )
            if view.rows:
                self.say(view.rows[-1])

    def _panel(self, view: View, rates: Sequence[float]) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(justify="right", min_width=9)
        grid.add_column(justify="right", min_width=10)
        for name, number, rate in zip(
            ("records in", "rows read", "rows out"),
            (view.records_in, view.rows_read, view.rows_out),
            rates,
            strict=True,
        ):
            grid.add_row(name, f"{number:,}", f"{rate:,.1f}/s")
        state = "Spark starts ..." if view.batch is None else f"micro-batch {view.batch}, {_behind(view)}"
        rows = Text("\n".join(view.rows) or "nothing yet", no_wrap=True, overflow="ellipsis")
        title = Text(f"what {self._program} printed last")
        return Group(grid, Text(state), Panel(rows, title=title, title_align="left"), Text("Ctrl-C ends it all", "dim"))


def _behind(view: View) -> str:
    if view.batch is None:
        return "Spark starts"
    return "lag not known yet" if view.behind_millis is None else f"{view.behind_millis:,} ms behind"
