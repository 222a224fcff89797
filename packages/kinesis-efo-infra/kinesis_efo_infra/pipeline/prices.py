"""Prices by region, from `prices.json`, which `make prices` refreshes from AWS's price list.

Unknown prices of a region are replaced with those of the nearest region that has them; reports must mention this.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("prices.json")
PAGE = "https://aws.amazon.com/kinesis/data-streams/pricing/"
"""Where AWS publishes prices of Kinesis."""
_FIRST = "us-east-1"
"""The region whose prices are used if no nearer region is known."""
_OTHER_CURRENCIES = ("cn-",)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of Kinesis in a region, in US dollars.

    Attributes:
        region: Their region.
        date: When they were entered.
        source: Their source; today's prices are where AWS publishes them.
        shard_hour: An hour of a shard of a provisioned stream.
        extended_shard_hour: Surcharge on `shard_hour` for retention over 24 hours.
        consumer_shard_hour: An hour of a consumer on a shard of a provisioned stream.
        gb_provisioned: A GB that a consumer of a provisioned stream gets.
        million_put_units: A million units of 25 KB that are put into a provisioned stream.
        stream_hour: An hour of an on-demand stream.
        gb_in_on_demand: A GB that is put into an on-demand stream.
        gb_out_on_demand: A GB that is read from one with GetRecords.
        gb_on_demand: A GB that a consumer of one gets; it has no consumer-shard hours.
        extended_gb_month: A GB that is kept in one for longer than 24 hours, a month.
        gb_in_on_demand_advantage: As `gb_in_on_demand`, in an account with On-demand Advantage, where streams have no hours; None
            where that is unknown.
        gb_out_on_demand_advantage: As `gb_out_on_demand`.
        gb_on_demand_advantage: As `gb_on_demand`.
        extended_gb_month_advantage: As `extended_gb_month`.
        long_term_gb_month: A GB that is kept for longer than 7 days, in any mode, a month.
        borrowed: Names of prices that are unknown in the region, with the region that they are from.
    """

    region: str
    date: str
    source: str
    shard_hour: float
    extended_shard_hour: float
    consumer_shard_hour: float
    gb_provisioned: float
    million_put_units: float
    stream_hour: float
    gb_in_on_demand: float
    gb_out_on_demand: float
    gb_on_demand: float
    extended_gb_month: float
    gb_in_on_demand_advantage: float | None
    gb_out_on_demand_advantage: float | None
    gb_on_demand_advantage: float | None
    extended_gb_month_advantage: float | None
    long_term_gb_month: float
    borrowed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Prices of other services, which are the same in most regions, in US dollars.

    Attributes:
        date: When they were entered.
        source: Where AWS publishes them.
        key_month: A customer key of KMS, a month.
        alarm_metric_month: A metric that an alarm of CloudWatch watches.
        metric_month: A metric of a shard.
        dashboard_month: A dashboard, after the first three of an account.
        advanced_parameter_month: A parameter of the advanced tier.
    """

    date: str
    source: str
    key_month: float
    alarm_metric_month: float
    metric_month: float
    dashboard_month: float
    advanced_parameter_month: float


FIGURES = tuple(each.name for each in fields(Prices) if each.name not in ("region", "date", "source", "borrowed"))
"""Names of the prices of a region."""
OF_ADVANTAGE = tuple(each for each in FIGURES if each.endswith("_advantage"))
"""The names of prices with On-demand Advantage."""


def prices_of(region: str, file: Path | None = None) -> Prices | None:
    """The prices of a region, or of the nearest one that has any; None if prices are in another currency.

    Missing prices are taken from the nearest region that has them (`borrowed`).

    Args:
        region: The region.
        file: The prices; default: those of this package.
    """
    if region.startswith(_OTHER_CURRENCIES):
        return None
    known = _document(file)["regions"]
    nearest = nearest_of(region, known)
    if nearest is None:
        return None
    lenders = {each: nearest_of(region, [one for one in known if each in known[one]]) for each in FIGURES}
    borrowed = {each: one for each, one in lenders.items() if each not in known[nearest] and one is not None}
    taken = {each: known[one][each] for each, one in borrowed.items()}
    return Prices(region=nearest, borrowed=borrowed, **known[nearest], **taken)


def elsewhere(file: Path | None = None) -> Elsewhere:
    """The prices of other services."""
    return Elsewhere(**_document(file)["elsewhere"])


def nearest_of(region: str, known: Collection[str]) -> str | None:
    """Return the known region whose name has the longest common prefix with a region's; `us-east-1` if none has one.

    >>> nearest_of("eu-west-3", ["us-east-1", "eu-west-1", "eu-north-1"]), nearest_of("sa-east-1", ["us-east-1"])
    ('eu-west-1', 'us-east-1')
    """

    def alike(other: str) -> int:
        pairs = zip(region.split("-"), other.split("-"), strict=False)
        return next((number for number, (one, two) in enumerate(pairs) if one != two), 9)

    return max(sorted(known, key=lambda each: each != _FIRST), key=alike, default=None)


def told(prices: Prices, region: str) -> str:
    """Return a sentence with the region and date of prices, which says first if they are from another region.

    Args:
        prices: The prices that were taken.
        region: The region that they were taken for.
    """
    found = "" if prices.source == PAGE else f", by {prices.source}"
    day = f"Prices of {prices.region} as known on {prices.date}{found}; today's: {PAGE}"
    others: dict[str, list[str]] = {}
    for figure, lender in prices.borrowed.items():
        others.setdefault(lender, []).append(figure.replace("_", " "))
    for lender, figures in others.items():
        day = f"**Of {prices.region}, {', '.join(figures)} are not known here: these are those of {lender}, and may be dearer.** {day}"
    if prices.region == region:
        return day
    return f"**Prices of {region} are not known here; these are those of {prices.region}, and {region} may be dearer.** {day}"


def _document(file: Path | None) -> Any:
    return json.loads((file or FILE).read_text(encoding="utf-8"))
