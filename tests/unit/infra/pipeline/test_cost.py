"""What a plan changes in the bill for Enhanced Fan-Out."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from kinesis_efo_infra.pipeline.cost import HOURS, Change, Reading, changes, table
from kinesis_efo_infra.pipeline.prices import FIGURES, FILE, PAGE, nearest_of, prices_of, told

ARN = "arn:aws:kinesis:us-east-1:111122223333:stream/dev-orders"
ORDERS = "aws_kinesis_stream.orders"
KNOWN = Path(__file__).parents[3] / "support" / "prices.json"
PRICES = prices_of("us-east-1", KNOWN)
assert PRICES is not None


def stream(shards: int | None, *, known: bool = True) -> dict[str, Any]:
    mode = "ON_DEMAND" if shards is None else "PROVISIONED"
    return {"arn": ARN if known else None, "shard_count": shards, "stream_mode_details": [{"stream_mode": mode}]}


def consumer(arn: str | None = ARN) -> dict[str, Any]:
    return {"stream_arn": arn}


def plan(*resources: tuple[str, Any, Any]) -> dict[str, Any]:
    """A plan: address, values before and values after of each resource."""
    kinds = {address: address.partition(".")[0] for address, _, _ in resources}
    refers = {"stream_arn": {"references": [f"{ORDERS}.arn", ORDERS]}}
    declared = [
        {"address": address, "type": kinds[address], "expressions": refers}
        for address, _, after in resources
        if after and "stream_arn" in after
    ]
    changed = [
        {"address": address, "type": kinds[address], "change": {"before": before, "after": after}}
        for address, before, after in resources
    ]
    return {"resource_changes": changed, "configuration": {"root_module": {"resources": declared}}}


def test_new_stream_without_an_arn_is_counted() -> None:
    new = plan((ORDERS, None, stream(4, known=False)), ("aws_kinesis_stream_consumer.a", None, {"stream_arn": None}))
    assert changes(new) == [Change(ORDERS, Reading(), Reading(1, 4, on_demand=False))]


def test_consumers_are_counted_on_their_stream() -> None:
    gone, kept, new = (f"aws_kinesis_stream_consumer.{name}" for name in ("gone", "kept", "new"))
    moved = plan(
        (ORDERS, stream(4), stream(4)),
        (gone, consumer(), None),
        (kept, consumer(), consumer()),
        (new, None, consumer()),
    )
    assert changes(moved) == [], "as many as before"
    (change,) = changes(plan((ORDERS, stream(4), stream(8)), (kept, consumer(), consumer()), (new, None, consumer())))
    assert (change.before.hours, change.after.hours) == (4 * HOURS, 2 * 8 * HOURS)
    (change,) = changes(plan((ORDERS, stream(4), None), (gone, consumer(), None)))
    assert (change.before.hours, change.after.hours) == (4 * HOURS, 0)


def test_an_on_demand_stream_has_no_consumer_shard_hours() -> None:
    (change,) = changes(
        plan((ORDERS, stream(4), stream(None)), ("aws_kinesis_stream_consumer.a", consumer(), consumer()))
    )
    assert (change.before.hours, change.after.hours) == (4 * HOURS, 0)
    row = table([change], "us-east-1", PRICES, advantage=False)[2]
    assert row == f"| `{ORDERS}` | 1 | 2,920 → 0 | 1 | 43.80 → 0.00 | 0.013 → 0.050 |"
    assert "| 0.013 → 0.016 |" in table([change], "us-east-1", PRICES, advantage=True)[2]


def test_the_shards_of_an_adopted_stream_are_not_known() -> None:
    (change,) = changes(plan(("aws_kinesis_stream_consumer.a", None, consumer())))
    assert change == Change(ARN, Reading(), Reading(1))
    row = table([change], "us-east-1", PRICES, advantage=False)[2]
    assert row.endswith(
        "| 0 → 1 | 0 → 730 for each shard | 0 → 1 | 0.00 → 10.95 for each shard | 0.000 → depends on its mode |"
    )


def test_nor_those_of_a_stream_that_somebody_else_scales() -> None:
    new = plan((ORDERS, stream(4), stream(4)), ("aws_kinesis_stream_consumer.a", None, consumer()))
    (change,) = changes(new, scaled=[ORDERS])
    assert change == Change(ORDERS, Reading(0, None, on_demand=None), Reading(1, None, on_demand=False))
    row = table([change], "us-east-1", PRICES, advantage=False)[2]
    assert row.endswith("| 0 → 730 for each shard | 0 → 1 | 0.00 → 10.95 for each shard | 0.000 → 0.013 |")


def test_table_has_date_and_source_of_prices() -> None:
    change = Change(ORDERS, Reading(), Reading(2, 4, on_demand=False))
    assert table([change], "us-east-1", PRICES, advantage=False)[-1] == (
        f"A month has 730 hours. Prices of us-east-1 as known on 2026-11-24; today's: {PAGE}"
    )
    head, _, row, _, told = table([change], "eu-west-9", None, advantage=False)
    assert "USD" not in head
    assert row == f"| `{ORDERS}` | 0 → 2 | 0 → 5,840 | 0 → 2 |"
    assert "Prices of eu-west-9 are not known here" in told
    assert table([], "us-east-1", PRICES, advantage=False) == []


def test_every_region_has_dated_prices() -> None:
    regions = json.loads(FILE.read_text(encoding="utf-8"))["regions"]
    assert regions
    for region, written in regions.items():
        known = prices_of(region, FILE)
        assert known is not None
        assert known.region == region
        assert date.fromisoformat(known.date) >= date(2026, 1, 1)
        assert known.source.startswith("https://")
        assert set(known.borrowed) == set(FIGURES) - written.keys()
        if known.source == PAGE:
            assert told(known, region) == f"Prices of {region} as known on {known.date}; today's: {PAGE}"


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
    known = prices_of("eu-west-1", file)
    assert known is not None
    assert (known.shard_hour, known.stream_hour, known.gb_on_demand_advantage) == (0.5, 7.5, None)
    assert set(known.borrowed.values()) == {"eu-north-1"}
    assert set(known.borrowed) == set(FIGURES) - some.keys()
    said = told(known, "eu-west-1")
    assert said.startswith("**Of eu-west-1, extended shard hour, consumer shard hour, ")
    assert " are not known here: these are those of eu-north-1, and may be dearer.** Prices of eu-west-1 " in said
    assert f"as known on 2026-02-03, by https://example.com/list; today's: {PAGE}" in said
    other = prices_of("eu-west-9", file)
    assert other is not None
    assert told(other, "eu-west-9").startswith("**Prices of eu-west-9 are not known here; these are those of eu-west-1")


def test_region_without_prices_uses_the_nearest_ones(tmp_path: Path) -> None:
    taken = prices_of("eu-west-9")
    assert taken is not None
    assert told(taken, "eu-west-9").startswith(
        f"**Prices of eu-west-9 are not known here; these are those of {taken.region}, and eu-west-9 may be dearer.** Prices of "
    )
    change = Change(ORDERS, Reading(), Reading(3, 5000, on_demand=False))
    lines = table([change], "eu-west-9", taken, advantage=False)
    assert "| 0.00 → 164,250.00 |" in lines[2]
    assert "are not known here" in lines[-1]
    assert nearest_of("eu-west-3", ["ap-south-1", "eu-north-1", "eu-west-1", "us-east-1"]) == "eu-west-1"
    assert nearest_of("eu-central-2", ["ap-south-1", "eu-north-1", "us-east-1"]) == "eu-north-1"
    assert nearest_of("me-south-1", ["ap-south-1", "eu-north-1", "us-east-1"]) == "us-east-1"
    assert prices_of("cn-north-1") is None, "in yuan"
