"""Pictures of a terminal: `kinesis-efo top`, drawn from figures that are always the same, and the quick start as it was recorded.

python -m scripts.picture records the quick start again; `make docs` draws it.
"""

from __future__ import annotations

import os
import re
import sys
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI
from rich.text import Text

from kinesis_efo.fetcher.status import QueryStatus, RunStatus, ShardStatus, Subscription
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.cli.top.terminal import show
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.pulse import Pulse
from scripts import release_check

WIDTH: Final = 92
HEIGHT: Final = 22
NOW: Final = 1_795_525_392.0
"""Epoch seconds of the look."""
STEP: Final = 10
"""Seconds since the look before."""
RECORDING: Final = Path(__file__).with_name("quickstart.txt")
"""What the quick start printed."""
_LIGHT: Final = (
    "@media (prefers-color-scheme: light) { rect { fill: #fff; stroke: #ccc } text { fill: #222 !important } }"
)
"""Colors of the quick start for readers with a light background."""
_ROWS: Final = 8
"""Rows of the recording."""
_FOREIGN_FONTS: Final = re.compile(r"@font-face \{.*?\}\n*\s*", re.DOTALL)


def _shard(number: int, *, later: int, burst: bool) -> ShardStatus:
    """One shard: number 17 waits for Spark, number 3 is read as fast as Kinesis sends, if it gets a burst."""
    rate = 97_000 + 730 * (number % 9)
    behind, buffered, waiting, state = 40 + 11 * number, 90_000 + 2_000 * number, None, "streaming"
    done = rate
    if number == 17:
        behind, buffered, waiting, state, done = 74_000 + 900 * STEP * later, 21_000_000, 74.0, "paused", 12_700
    elif number == 3 and burst:
        rate, behind, buffered, done = 2_000_000, 292_000 - 10_300 * later, 160_000, 2_000_000
    subscription = Subscription(state, 7, 0, 500_000_000 + rate * STEP * later, 0.1, 300_000 + 90 * STEP * later)
    return ShardStatus(
        "orders",
        f"shardId-{number:012d}",
        f"AFTER:{10_000 + later}",
        buffered + (rate - done) * STEP * later,
        400,
        waiting,
        behind,
        None,
        subscription,
        f"AFTER:{9_000 + later}",
    )


def _query(number: int, *, later: int) -> QueryStatus:
    """One query: number 1 is at the tip, number 2 has a slow sink, number 3 began yesterday and catches up."""
    apart = number == 3
    return QueryStatus(
        number,
        ["orders"],
        ("7c1f09ab", "b04e77d1", "2f9a6c30")[number - 1],
        (690, 148_000 + 900 * STEP * later, 5_204_000 - 260 * STEP * later)[number - 1],
        "orders",
        f"shardId-{(4, 17, 52)[number - 1]:012d}",
        (1_900, 61_000, 9_400)[number - 1],
        (5_900_000, 27_400_000, 14_900_000)[number - 1],
        90 * 60 * STEP * later,
        (5_980_000, 5_890_000, 30_900_000)[number - 1] * STEP * later,
        (5_900_000, 27_400_000, 0)[number - 1],
        60 if apart else 0,
        60 * STEP * later if apart else 0,
        31_200_000 * STEP * later if apart else 0,
    )


def _look(queries: int = 0) -> Observation:
    pulse = Pulse()
    pulse.begin(NOW - STEP, "ip-10-0-1-7:4711 reads now")
    view = None
    for later in (0, 1):
        shards = [_shard(number, later=later, burst=not queries) for number in range(60)]
        told = [_query(number, later=later) for number in range(1, queries + 1)]
        view = pulse.add(RunStatus(NOW - STEP + STEP * later, shards, 268_435_456, 0.47 * STEP * later, told))
    owner = "ip-10-0-1-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee"
    return Observation(
        NOW, {"orders": Lease(run_key("orders"), owner=owner, lag=Lag(60, 1))}, view, NOW, "", pulse.events
    )


def picture(queries: int = 0) -> str:
    """The picture as SVG. It loads nothing.

    Args:
        queries: How many queries share the run; 0: it has one, of which nothing more is told.
    """
    return _drawn(show("lake", _look(queries), WIDTH, HEIGHT), HEIGHT, "top")


def recorded() -> str:
    """The picture of the quick start as SVG, dark or light as its reader's system."""
    text = Text(RECORDING.read_text(encoding="utf-8").rstrip())
    text.highlight_regex(r"^\$ .*", "bold")
    return _drawn(text, str(text).count("\n") + 1, "quickstart").replace("<style>", f"<style>\n    {_LIGHT}")


def record() -> str:
    """Run the quick start until it prints rows, and return what a terminal shows of it."""
    with TemporaryDirectory() as work:
        terminal = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}
        printed = release_check.quickstart(Path(sys.executable).with_name("kinesis-efo"), Path(work), terminal)
        lines = ["$ kinesis-efo quickstart", *printed.replace(work, "/home/me").splitlines()]
    rows = [place for place, line in enumerate(lines) if line.startswith("|")]
    # The first micro-batch may be long.
    return "\n".join([*lines[: rows[0] + 1 + _ROWS], "..."]) + "\n"


def _drawn(shown: RenderableType, height: int, name: str) -> str:
    console = Console(
        record=True, width=WIDTH, height=height, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(shown)
    svg = console.export_svg(title=f"kinesis-efo {name}", theme=MONOKAI, unique_id=name)
    return "\n".join(line.rstrip() for line in _FOREIGN_FONTS.sub("", svg).splitlines()) + "\n"


if __name__ == "__main__":
    RECORDING.write_text(record(), encoding="utf-8")
