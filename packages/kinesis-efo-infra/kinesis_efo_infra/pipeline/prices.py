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
"""The page on which AWS publishes the prices of Kinesis."""
_FIRST = "us-east-1"
"""The region whose prices are used if no nearer region is known."""
_OTHER_CURRENCIES = ("cn-",)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of Kinesis in a region, in US dollars.

    Attributes:
        region: Region of the prices.
        date: Date on which the prices were recorded.
        source: Where the prices are from.
        shard_hour: Shard hour of a provisioned stream.
        extended_shard_hour: Surcharge on `shard_hour` for retention over 24 hours.
        consumer_shard_hour: Consumer-shard hour of a provisioned stream.
        gb_provisioned: A GB that a consumer reads from a provisioned stream.
        million_put_units: A million PUT payload units (25 KB each) of a provisioned stream.
        stream_hour: Stream hour of an on-demand stream.
        gb_in_on_demand: A GB that is written to an on-demand stream.
        gb_out_on_demand: A GB that is read from an on-demand stream with GetRecords.
        gb_on_demand: A GB that a consumer reads from an on-demand stream, which has no consumer-shard hours.
        extended_gb_month: A GB that an on-demand stream retains for longer than 24 hours, per month.
        gb_in_on_demand_advantage: `gb_in_on_demand` in an account with On-demand Advantage, which has no stream hours; None if unknown.
        gb_out_on_demand_advantage: `gb_out_on_demand` with On-demand Advantage; None if unknown.
        gb_on_demand_advantage: `gb_on_demand` with On-demand Advantage; None if unknown.
        extended_gb_month_advantage: `extended_gb_month` with On-demand Advantage; None if unknown.
        long_term_gb_month: A GB that a stream of any mode retains for longer than 7 days, per month.
        borrowed: For each price that is unknown in the region, the region that it is taken from instead.
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
        date: Date on which the prices were recorded.
        source: Where AWS publishes the prices.
        key_month: A KMS customer key, per month.
        alarm_metric_month: A metric that a CloudWatch alarm watches, per month.
        metric_month: A shard-level metric, per month.
        dashboard_month: A CloudWatch dashboard beyond the account's first three, per month.
        advanced_parameter_month: An SSM parameter of the advanced tier, per month.
    """

    date: str
    source: str
    key_month: float
    alarm_metric_month: float
    metric_month: float
    dashboard_month: float
    advanced_parameter_month: float


FIGURES = tuple(each.name for each in fields(Prices) if each.name not in ("region", "date", "source", "borrowed"))
"""The names of all prices of a region."""
OF_ADVANTAGE = tuple(each for each in FIGURES if each.endswith("_advantage"))
"""The names of prices with On-demand Advantage."""


def prices_of(region: str, file: Path | None = None) -> Prices | None:
    """Return the prices of a region, or of the nearest region that has any; None if its prices are not in US dollars.

    Missing prices are taken from the nearest region that has them (`borrowed`).

    Args:
        region: The region.
        file: JSON file with the prices; default: the one in this package.
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
    """Return the prices of other services from a file, by default the one in this package."""
    return Elsewhere(**_document(file)["elsewhere"])


def nearest_of(region: str, known: Collection[str]) -> str | None:
    """Return the known region whose name shares the longest prefix with `region`; if none shares one, `us-east-1`.

    >>> nearest_of("eu-west-3", ["us-east-1", "eu-west-1", "eu-north-1"]), nearest_of("sa-east-1", ["us-east-1"])
    ('eu-west-1', 'us-east-1')
    """

    def alike(other: str) -> int:
        pairs = zip(region.split("-"), other.split("-"), strict=False)
        return next((number for number, (one, two) in enumerate(pairs) if one != two), 9)

    return max(sorted(known, key=lambda each: each != _FIRST), key=alike, default=None)


def told(prices: Prices, region: str) -> str:
    """Return a sentence with the region and date of prices. It begins with a notice if some prices are from another region.

    Args:
        prices: The prices.
        region: The region for which the prices are used.
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
