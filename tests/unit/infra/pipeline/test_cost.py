"""What a plan changes in the bill for Enhanced Fan-Out."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_infra.pipeline.cost import Change, Reading, changes, table
from kinesis_efo_infra.pipeline.prices import FIGURES, FILE, PAGE, nearest_of, prices_of, told
from tests.unit.infra.conftest import PRICES as KNOWN

ARN = "arn:aws:kinesis:us-east-1:111122223333:stream/dev-orders"
ORDERS = "aws_kinesis_stream.orders"
LAKE, POND, COPY = (f"aws_kinesis_stream_consumer.{name}" for name in ("lake", "pond", "copy"))
PRICES = prices_of("us-east-1", KNOWN)
CONSUMER = {"stream_arn": ARN}


def stream(shards: int | None) -> dict[str, Any]:
    mode = "ON_DEMAND" if shards is None else "PROVISIONED"
    return {"arn": ARN, "shard_count": shards, "stream_mode_details": [{"stream_mode": mode}]}


def plan(*resources: tuple[str, Any, Any]) -> dict[str, Any]:
    """A plan: address, values before and values after of each resource."""
    changes = [
        {"address": address, "type": address.partition(".")[0], "change": {"before": before, "after": after}}
        for address, before, after in resources
    ]
    return {"resource_changes": changes}


FOUR = (ORDERS, stream(4), stream(4))
CASES: dict[str, tuple[list[tuple[str, Any, Any]], str]] = {
    "as many as before": ([FOUR, (LAKE, CONSUMER, None), (POND, CONSUMER, CONSUMER), (COPY, None, CONSUMER)], ""),
    "more": (
        [(ORDERS, stream(4), stream(8)), (LAKE, CONSUMER, CONSUMER), (POND, None, CONSUMER)],
        f"{ORDERS}` | 1 → 2 | 2,920 → 11,680 | 1 → 2 | 43.80 → 175.20 | 0.013 → 0.026",
    ),
    "gone": ([(ORDERS, stream(4), None), (LAKE, CONSUMER, None)], "| 1 → 0 | 2,920 → 0 | 1 → 0 | 43.80 → 0.00 |"),
    "on-demand": (
        [(ORDERS, stream(4), stream(None)), (LAKE, CONSUMER, CONSUMER)],
        f"{ORDERS}` | 1 | 2,920 → 0 | 1 | 43.80 → 0.00 | 0.013 → 0.050",
    ),
    "adopted": (
        [(LAKE, None, CONSUMER)],
        f"{ARN}` | 0 → 1 | 0 → 730 for each shard | 0 → 1 | 0.00 → 10.95 for each shard | 0.000 → depends on its mode",
    ),
    "scaled elsewhere": ([FOUR, (LAKE, None, CONSUMER)], "| 0 → 730 for each shard | 0 → 1 | 0.00 → 10.95 for each shard | 0.000 → 0.013"),
}  # fmt: skip


@pytest.mark.parametrize(("case", "resources", "row"), [(case, *each) for case, each in CASES.items()])
def test_readers_of_a_stream_are_counted(case: str, resources: list[tuple[str, Any, Any]], row: str) -> None:
    found = changes(plan(*resources), scaled=[ORDERS] if case == "scaled elsewhere" else [])
    assert len(found) == bool(row)
    assert not row or row in table(found, "us-east-1", PRICES, advantage=False)[2]
    if case == "on-demand":
        assert "| 0.013 → 0.016 |" in table(found, "us-east-1", PRICES, advantage=True)[2]


def test_table_has_date_and_source_of_prices() -> None:
    change = Change(ORDERS, Reading(), Reading(2, 4, on_demand=False))
    assert table([change], "us-east-1", PRICES, advantage=False)[-1] == (
        f"A month has 730 hours. Prices of us-east-1 as known on 2026-11-24; today's: {PAGE}"
    )
    head, _, row, _, told = table([change], "eu-west-9", None, advantage=False)
    assert "USD" not in head
    assert row == f"| `{ORDERS}` | 0 → 2 | 0 → 5,840 | 0 → 2 |"
    assert "Prices of eu-west-9 are not known here" in told


def test_every_region_has_dated_prices() -> None:
    for region, written in json.loads(FILE.read_text(encoding="utf-8"))["regions"].items():
        known = prices_of(region, FILE)
        assert known.region == region
        assert date.fromisoformat(known.date) >= date(2026, 1, 1)
        assert known.source.startswith("https://")
        assert set(known.borrowed) == set(FIGURES) - written.keys()


def test_missing_price_is_that_of_the_nearest_region(tmp_path: Path) -> None:
    document = json.loads(FILE.read_text(encoding="utf-8"))
    whole = document["regions"]["us-east-1"]
    some = {
        "date": "2026-02-03",
        "source": "https://example.com/list",
        "shard_hour": 0.5,
        "gb_on_demand_advantage": None,
    }
    document["regions"] = {"us-east-1": whole, "eu-west-1": some, "eu-north-1": {**whole, "stream_hour": 7.5}}
    file = tmp_path / "prices.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    known, other = prices_of("eu-west-1", file), prices_of("eu-west-9", file)
    assert known and other
    assert (known.shard_hour, known.stream_hour, known.gb_on_demand_advantage) == (0.5, 7.5, None)
    assert set(known.borrowed.values()) == {"eu-north-1"}
    said = told(known, "eu-west-1")
    assert said.startswith("**Of eu-west-1, extended shard hour, consumer shard hour, ")
    assert " are not known here: these are those of eu-north-1, and may be dearer.** Prices of eu-west-1 " in said
    assert f"as known on 2026-02-03, by https://example.com/list; today's: {PAGE}" in said
    assert told(other, "eu-west-9").startswith(
        "**Prices of eu-west-9 are not known here; these are those of eu-west-1, and eu-west-9 may be dearer.** "
    )
    assert nearest_of("eu-west-3", ["ap-south-1", "eu-north-1", "eu-west-1", "us-east-1"]) == "eu-west-1"
    assert nearest_of("me-south-1", ["ap-south-1", "eu-north-1", "us-east-1"]) == "us-east-1"
    assert prices_of("cn-north-1") is None, "in yuan"
