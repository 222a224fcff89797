"""The tables of `lag` on terminals of different widths: nothing is cut off, the worst comes first, a line sums it up."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from kinesis_efo.fetcher.status import QueryStatus
from kinesis_efo.leases.keys import run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.row import Lease
from kinesis_efo.positions import Position, ShardKey
from kinesis_efo_tools.cli.lag_report import LagReport, data, view
from kinesis_efo_tools.operate.lag import Movement, ReaderState, ShardLag

NOW = 1_700_000_000.0
OWNER = "ip-10-0-0-7:6f2c:4026531836:4711:88123:00c0ffee00c0ffee"


def shown(what: RenderableType, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, markup=False, emoji=False, highlight=False).print(what)
    return file.getvalue().splitlines()


def report(shards: int, *, asked: bool = True) -> LagReport:
    number = int("49590338271490256608559692538361571095921575989136588898")
    rows = [
        ShardLag(
            ShardKey("orders", f"shardId-{index:012d}"),
            ReaderState.READING,
            Position.after(number + index),
            NOW - 10 * index if index % 2 else None,
            OWNER,
            records=index,
            records_exact=index != 3,
            seconds=float(50 * index),
            seconds_exact=True,
            movement=Movement(float(index), True),
            age=0.0 if asked else 7.0,
        )
        for index in range(shards)
    ]
    run = Lease(
        run_key("orders"),
        owner=OWNER,
        lag=Lag(shards, 64_000_000, 2_900_000, rows[-1].key.shard, 5, int(NOW * 1000) - 3000),
    )
    streams = frozenset({"orders"}) if asked else frozenset()
    return LagReport(
        "lake", NOW, {"orders": run}, {"orders": ReaderState.READING}, streams, rows, {"orders": 4_200}, []
    )


@pytest.mark.parametrize("shards", [1, 60, 300])
def test_80_columns_are_enough_for_every_line(shards: int) -> None:
    lines = shown(view([report(shards)], 80), 80)
    assert all(len(line) <= 80 for line in lines)
    table = [line.split() for line in lines if line.startswith("orders  ")]
    # One line for each shard, and one for the run.
    assert len(table) == shards + 1
    assert [line[1] for line in table[:shards]] == [str(index) for index in reversed(range(shards))], "the worst first"


def test_report_at_80_columns_has_summary_and_shards() -> None:
    lines = shown(view([report(60)], 80), 80)
    assert "orders: 60 shards, 49m10s behind (shard 59), 1,770+ unread; positions from the" in "\n".join(lines)
    assert next(line for line in lines if line.startswith("orders  ")).split() == [
        "orders", "59", "reading", "22:03:30", "59.0s", "59", "49m10s",
    ]  # fmt: skip
    assert any("AFTER:4959…588956" in line for line in lines)
    run = next(line for line in lines if "ip-10-0-0-7:4711" in line).split()
    assert run == ["orders", "reading", "ip-10-0-0-7:4711", "60", "48m23s", "59", "61.0", "MiB", "3.0s"]


def test_slowest_of_several_queries_is_named() -> None:
    found = report(4)
    queries = [QueryStatus(1, ["orders"]), QueryStatus(2, ["orders"], "7c1f09ab", 150_000, apart=1)]
    slow = replace(found, shards=[replace(row, query=1 + index % 2) for index, row in enumerate(found.shards)])
    told = replace(slow, queries={"orders": queries})
    text = " ".join("\n".join(shown(view([told], 200), 200)).split())
    assert "positions from the run itself, of the slowest of 2 queries: query 2 (checkpoint 7c1f09ab) " in text
    plain = data([told])["applications"][0]
    assert [(each["number"], each["checkpoint"], each["shardsApart"]) for each in plain["queries"]] == [
        (1, None, 0),
        (2, "7c1f09ab", 1),
    ]
    assert [row["query"] for row in plain["shards"]] == [1, 2, 1, 2]
    assert [(row["secondsStill"], row["seenMoving"]) for row in plain["shards"][:2]] == [(0.0, True), (1.0, True)]
    assert "queries" not in "\n".join(shown(view([found], 200), 200))


def test_with_room_ids_and_times_can_be_copied() -> None:
    lines = "\n".join(shown(view([report(4, asked=False)], 160), 160))
    assert "shardId-000000000003" in lines
    assert "AFTER:49590338271490256608559692538361571095921575989136588900" in lines
    assert "2023-11-14T22:12:50Z" in lines
    assert "positions from the lease table, up to 7.0s old" in lines
