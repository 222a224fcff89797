"""Pictures of `kinesis-efo top` as it fills a terminal, drawn from figures that are always the same: README's, and with several queries."""

from __future__ import annotations

import re
from io import StringIO
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI

from kinesis_efo.fetcher.status import QueryStatus, RunStatus, ShardStatus, Subscription
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Lease
from kinesis_efo_tools.cli.top.terminal import show
from kinesis_efo_tools.operate.following import Observation
from kinesis_efo_tools.operate.pulse import Pulse

WIDTH: Final = 92
HEIGHT: Final = 22
NOW: Final = 1_795_525_392.0
"""Epoch seconds of the look."""
STEP: Final = 10
"""Seconds since the look before."""
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
    console = Console(
        record=True, width=WIDTH, height=HEIGHT, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(show("lake", _look(queries), WIDTH, HEIGHT))
    svg = console.export_svg(title="kinesis-efo top", theme=MONOKAI, unique_id="top")
    return "\n".join(line.rstrip() for line in _FOREIGN_FONTS.sub("", svg).splitlines()) + "\n"
