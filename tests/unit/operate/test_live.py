"""What is believed of a shard, of its row and of the run that reads it."""

from __future__ import annotations

import pytest

from kinesis_efo.fetcher.status import QueryStatus, RunStatus, ShardStatus
from kinesis_efo.leases import Lease, run_key
from kinesis_efo.positions import Position
from kinesis_efo_tools.operate.live import RunReplies, brought_up_to_date


@pytest.mark.parametrize(
    ("row", "told", "query", "position", "read_until"),
    [
        (20, "AFTER:50", None, 50, 9.0),
        (20, "AFTER:50", 2, 50, 9.0),
        # It was written after the run had answered.
        (50, "AFTER:20", None, 50, 9.0),
        # A query began behind the row, which is the other one's.
        (50, "AFTER:20", 2, 20, None),
        (50, None, None, 50, 9.0),
    ],
)
def test_the_newer_of_two_positions_is_believed_and_that_of_the_slowest_of_several_queries(
    row: int, told: str | None, query: int | None, position: int, read_until: float | None
) -> None:
    rows = {"s-1": Lease("orders:s-1", checkpoint=Position.after(row), read_until=9.0, written=1.0)}
    status = ShardStatus("orders", "s-1", "AFTER:90", 0, 0, None, 0, done=told, query=query)
    found = brought_up_to_date(rows, {"s-1": status}, "orders", 100.0)["s-1"]
    assert (found.reached, found.read_until) == (Position.after(position), read_until)


def test_queries_are_those_that_read_the_stream() -> None:
    status = RunStatus(1.0, [], queries=[QueryStatus(1, ["orders"]), QueryStatus(2, ["clicks", "orders"])])
    asked, run = RunReplies({"host": status}, {}), Lease(run_key("clicks"), owner="host")
    assert [each.number for each in asked.queries(run, "clicks")] == [2]
    assert asked.queries(Lease(run_key("clicks"), owner="another"), "clicks") == []
    assert asked.queries(None, "clicks") == []
