"""Refreshes `kinesis_efo_infra/pipeline/prices.json` from AWS's price list: `make prices`.

It reads the files of the Price List Bulk API, one for each region, which need no credentials. Source: AWS Billing user guide,
"Reading the price list files"; a product of the service AmazonKinesis is known by the end of its `usagetype`, before which is a
region's prefix in all regions but us-east-1, as in `EU-Storage-ShardHour`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinesis_efo_infra.pipeline.prices import FIGURES, FILE, OF_ADVANTAGE, PAGE

_HOST = "https://pricing.us-east-1.amazonaws.com"
_INDEX = f"{_HOST}/offers/v1.0/aws/AmazonKinesis/current/region_index.json"
_USAGE = {
    "shard_hour": "Storage-ShardHour",
    "extended_shard_hour": "Extended-ShardHour",
    "consumer_shard_hour": "EnhancedFanoutHour",
    "gb_provisioned": "ReadBytes",
    "million_put_units": "PutRequestPayloadUnits",
    "stream_hour": "OnDemand-StreamHour",
    "gb_in_on_demand": "OnDemand-BilledIncomingBytes",
    "gb_out_on_demand": "OnDemand-BilledOutgoingBytes",
    "gb_on_demand": "OnDemand-BilledOutgoingEFOBytes",
    "extended_gb_month": "OnDemand-ExtendedRetention-ByteHrs",
    "long_term_gb_month": "LongTermRetention-ByteHrs",
}
"""Ends of usage types."""
_ADVANTAGE = {
    "gb_in_on_demand_advantage": "BilledIncomingBytes",
    "gb_out_on_demand_advantage": "BilledOutgoingBytes",
    "gb_on_demand_advantage": "BilledOutgoingEFOBytes",
    "extended_gb_month_advantage": "ExtendedRetention-ByteHrs",
}
"""The same for products of the group *OnDemand Advantage*: `APN1-Advantage-BilledOutgoingBytes`, for example."""
_MILLION = 1_000_000

Read = Callable[[str], Any]
"""Reads a JSON document."""


class PriceListError(Exception):
    """The price list is not what this program reads."""


def refresh(read: Read, file: Path, regions: tuple[str, ...] = ()) -> list[str]:
    """Write the prices of all regions in the price list, and keep those of regions that are not in it.

    A region that lacks a price keeps its former entry, since half of a price list is none; but not every region has On-demand
    Advantage.

    Args:
        read: Reads a JSON document by its URL.
        file: The prices.
        regions: Only these; default: all.

    Returns:
        A line for each region.

    Raises:
        PriceListError: The index is none.
    """
    document = json.loads(file.read_text(encoding="utf-8"))
    try:
        index = read(_INDEX)["regions"]
    except (KeyError, TypeError):
        raise PriceListError(f"{_INDEX} has no regions: it is not the index of a service") from None
    lines = []
    for region, entry in sorted(index.items()):
        if regions and region not in regions:
            continue
        offer = read(_HOST + entry["currentVersionUrl"])
        found = prices(offer)
        missing = [each for each in FIGURES if each not in found]
        if needed := [each for each in missing if each not in OF_ADVANTAGE]:
            lines.append(f"{region}: left as it was; the price list lacks {', '.join(needed)}")
            continue
        dated = {"date": str(offer["publicationDate"])[:10], "source": PAGE}
        document["regions"][region] = {**dated, **{name: found.get(name) for name in FIGURES}}
        lines.append(f"{region}: of {dated['date']}" + (f"; without {', '.join(missing)}" if missing else ""))
    document["regions"] = dict(sorted(document["regions"].items()))
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return lines


def prices(offer: Mapping[str, Any]) -> dict[str, float]:
    """The prices in the price list file of a region, by the names that `Prices` has."""
    found = {}
    for sku, product in offer["products"].items():
        attributes = product["attributes"]
        name = _named(attributes.get("usagetype", ""), attributes.get("group", ""))
        price = _price(offer["terms"]["OnDemand"].get(sku, {}))
        if name is not None and price is not None:
            found[name] = round(price * (_MILLION if name == "million_put_units" else 1), 10)
    return found


def _named(usage: str, group: str) -> str | None:
    if "Channel" in usage:
        return None  # deliveries of Kinesis to S3, which are of the same service
    if "Advantage" in group or "Advantage" in usage:
        return next((name for name, end in _ADVANTAGE.items() if usage.endswith(f"-{end}")), None)
    # With nothing but a region before it: `OnDemand-LongTermRetention-ByteHrs` is another product.
    return next((name for name, end in _USAGE.items() if re.fullmatch(rf"([A-Z0-9]+-)?{end}", usage)), None)


def _price(terms: Mapping[str, Any]) -> float | None:
    """Dollars for a unit; the first tier's, where there are several."""
    dimensions = [each for term in terms.values() for each in term["priceDimensions"].values()]
    first = [each for each in dimensions if each.get("beginRange") in ("0", None)]
    return float(first[0]["pricePerUnit"]["USD"]) if first and "USD" in first[0]["pricePerUnit"] else None


def _download(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def main(arguments: list[str] | None = None, read: Read = _download) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.prices", description=__doc__)
    parser.add_argument("regions", nargs="*", help="default: all in the price list")
    parser.add_argument("--file", type=Path, default=FILE, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        for line in refresh(read, options.file, tuple(options.regions)):
            sys.stdout.write(f"{line}\n")
    except (OSError, ValueError, KeyError, TypeError, PriceListError) as error:
        sys.stderr.write(f"error: AWS' price list cannot be read, so that nothing was written: {error!r}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
