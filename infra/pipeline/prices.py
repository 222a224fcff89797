"""Prices of Enhanced Fan-Out by region, from `prices.json`; a region that is not there has none.

In AWS's price list (`aws pricing get-products --service-code AmazonKinesis`), they are in the groups *Enhanced fan-out
consumer-shard hour*, *Enhanced fan-out GB of data retrieved*, *OnDemand* and *OnDemand Advantage*.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("prices.json")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a region, in US dollars.

    Attributes:
        region: The region.
        date: When they were entered.
        source: Where AWS publishes them.
        consumer_shard_hour: An hour of a consumer on a shard of a provisioned stream.
        gb_provisioned: A GB that a consumer of a provisioned stream gets.
        gb_on_demand: The same of an on-demand stream, which has no consumer-shard hours.
        gb_on_demand_advantage: The same in an account with On-demand Advantage.
    """

    region: str
    date: str
    source: str
    consumer_shard_hour: float
    gb_provisioned: float
    gb_on_demand: float
    gb_on_demand_advantage: float


def prices_of(region: str, file: Path = FILE) -> Prices | None:
    """The prices of a region; None if they are not known."""
    known = [Prices(**each) for each in json.loads(file.read_text(encoding="utf-8"))]
    return next((each for each in known if each.region == region), None)
