"""The program that writes several tables reads its stream once, on each version of Spark."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.orders import order, rows
from tests.support.world import World

pytestmark = pytest.mark.spark40
Run = Callable[[str, Mapping[str, object], Callable[[], bool]], dict[str, Any]]


@pytest.mark.long
def test_records_reach_their_tables_across_a_restart(world: Callable[..., World], tmp_path: Path, example: Run) -> None:
    w, tables = world({"orders": 2}), tmp_path / "out"
    # A busy machine renews late, and whoever takes a lease again counts it anew.
    given = {**w.options, "leaseTimeout": "60s"}
    arguments = {"output": tables, "checkpoint": tmp_path / "checkpoints", "interval": "0 seconds", **given}

    def run(orders: int, malformed: int, minutes: int) -> None:
        wanted = {"orders": orders, "malformed": malformed, "orders_per_minute": minutes}

        def has_all() -> bool:
            has = all(len(rows(tables / name)) >= number for name, number in wanted.items())
            epochs.add(w.leases()["#run:orders"]["epoch"]["N"] if has else "")
            return has

        epochs: set[str] = set()
        before = w.leases().get("#run:orders")
        example("several_tables.py", arguments, has_all)
        # While it stops, one query after the other, those that are left may go on with the run for a moment.
        first = 1 if before is None else int(before["epoch"]["N"]) + 1
        assert epochs - {""} == {str(first)}, "one run for all three"

    w.put([order("ann", "1.50", "2027-01-31T12:00:10Z"), ("eve", b"no"), order("bob", "2.00", "2027-01-31T12:00:50Z")])
    w.put([("eve", b"\n"), ("bob", b'{"id": "1", "amount": "much"}'), order("bob", "0.01", "2027-01-31T12:30:00Z")])
    run(orders=3, malformed=3, minutes=1)
    w.put([order("ann", "4.00", "2027-01-31T12:30:59Z"), ("eve", b"[]"), order("ann", "3.00", "2027-01-31T12:50:00Z")])
    run(orders=5, malformed=4, minutes=2)

    orders = rows(tables / "orders")
    assert sorted((row["customer"], str(row["amount"])) for row in orders) == [
        ("ann", "1.50"), ("ann", "3.00"), ("ann", "4.00"), ("bob", "0.01"), ("bob", "2.00"),
    ]  # fmt: skip
    assert all(row["sequenceNumber"] for row in orders)
    malformed = [row["data"] for row in rows(tables / "malformed")]
    assert sorted(malformed) == [b"\n", b"[]", b"no", b'{"id": "1", "amount": "much"}']
    minutes = {(row["start"], row["count"]) for row in rows(tables / "orders_per_minute")}
    assert minutes == {
        (datetime(2027, 1, 31, 12, 0), 2),  # noqa: DTZ001 - Spark's files say no time zone
        (datetime(2027, 1, 31, 12, 30), 2),  # noqa: DTZ001
    }
