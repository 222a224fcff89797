"""The picture of README: `kinesis-efo top` as it fills a terminal, drawn from figures that are always the same."""

from __future__ import annotations

import re
from io import StringIO
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI

from kinesis_efo.cli.top.terminal import show
from kinesis_efo.fetcher.status import RunStatus, ShardStatus, Subscription
from kinesis_efo.leases import Lag, Lease, run_key
from kinesis_efo.operate.following import Look
from kinesis_efo.operate.pulse import Pulse

WIDTH: Final = 92
HEIGHT: Final = 22
NOW: Final = 1_795_525_392.0
"""Epoch seconds of the look."""
STEP: Final = 10
"""Seconds since the look before."""
_FOREIGN_FONTS: Final = re.compile(r"@font-face \{.*?\}\n*\s*", re.DOTALL)


def _shard(number: int, *, later: int) -> ShardStatus:
    """One shard: number 17 waits for Spark, number 3 is read as fast as Kinesis sends."""
    rate = 97_000 + 730 * (number % 9)
    behind, buffered, waiting, state = 40 + 11 * number, 90_000 + 2_000 * number, None, "streaming"
    done = rate
    if number == 17:
        behind, buffered, waiting, state, done = 74_000 + 900 * STEP * later, 21_000_000, 74.0, "paused", 12_700
    elif number == 3:
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


def _look() -> Look:
    pulse = Pulse()
    pulse.begin(NOW - STEP, "ip-10-0-1-7:4711 reads now")
    view = None
    for later in (0, 1):
        shards = [_shard(number, later=later) for number in range(60)]
        view = pulse.add(RunStatus(NOW - STEP + STEP * later, shards, 268_435_456, 0.47 * STEP * later))
    owner = "ip-10-0-1-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee"
    return Look(NOW, {"orders": Lease(run_key("orders"), owner=owner, lag=Lag(60, 1))}, view, NOW, "", pulse.events)


def picture() -> str:
    """The picture as SVG. It loads nothing."""
    console = Console(
        record=True, width=WIDTH, height=HEIGHT, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(show("lake", _look(), WIDTH, HEIGHT))
    svg = console.export_svg(title="kinesis-efo top", theme=MONOKAI, unique_id="top")
    return "\n".join(line.rstrip() for line in _FOREIGN_FONTS.sub("", svg).splitlines()) + "\n"
