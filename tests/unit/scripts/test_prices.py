"""Prices are read from files of the form that AWS documents for its price list; the files here are made by hand."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_infra.pipeline.prices import FIGURES, FILE, prices_of
from scripts import prices as script

HOST = "https://pricing.us-east-1.amazonaws.com"
# Usage type, group, price, and the figure that it is, if any.
USAGE = [
    re.split(r" [|] ?", each)
    for each in """
Storage-ShardHour | Provisioned shard hour | 0.017 | shard_hour
Extended-ShardHour | Addon shard hour | 0.023 | extended_shard_hour
EnhancedFanoutHour | Enhanced fan-out consumer-shard hour | 0.0165 | consumer_shard_hour
ReadBytes | Enhanced fan-out GB of data retrieved | 0.014 | gb_provisioned
PutRequestPayloadUnits | Payload Units | 0.0000000165 | million_put_units
OnDemand-StreamHour | OnDemand | 0.044 | stream_hour
OnDemand-BilledIncomingBytes | OnDemand | 0.088 | gb_in_on_demand
OnDemand-BilledOutgoingBytes | OnDemand | 0.044 | gb_out_on_demand
OnDemand-BilledOutgoingEFOBytes | OnDemand | 0.055 | gb_on_demand
OnDemand-ExtendedRetention-ByteHrs | OnDemand | 0.11 | extended_gb_month
OnDemand-LongTermRetention-ByteHrs | OnDemand | 9.9 |
LongTermRetention-ByteHrs | Long-term Data Retention GB-month | 0.025 | long_term_gb_month
LongTermRetention-ReadBytes | Long-term Data Retrieval | 8.8 |
On-demand-Advantage-BilledIncomingBytes | OnDemand Advantage | 0.035 | gb_in_on_demand_advantage
Advantage-BilledOutgoingBytes | OnDemand Advantage | 0.0175 | gb_out_on_demand_advantage
On-demand-Advantage-BilledOutgoingEFOBytes | OnDemand Advantage | 0.0176 | gb_on_demand_advantage
On-demand-Advantage-ExtendedRetention-ByteHrs | OnDemand Advantage | 0.0255 | extended_gb_month_advantage
On-demand-Advantage-Channel-ProcessedBytes-S3TablesDestination | OnDemand Advantage | 7.7 |
""".strip().splitlines()
]
EXPECTED = {figure: float(price) for *_, price, figure in USAGE if figure} | {"million_put_units": 0.0165}


def offer(prefix: str, without: str = "nothing") -> dict[str, Any]:
    """A price list file of one region. Source of its form: AWS Billing user guide, "Reading the service price list file"."""
    rows = [each for each in USAGE if without not in each[0]]
    terms, products = {}, {}
    for n, (usage, group, price, _) in enumerate(rows):
        dimension = {"beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": price}}
        terms[f"SKU{n}"] = {"x": {"priceDimensions": {"x": dimension}}}
        products[f"SKU{n}"] = {"sku": f"SKU{n}", "attributes": {"usagetype": f"{prefix}{usage}", "group": group}}
    return {"publicationDate": "2026-11-01T12:00:00Z", "products": products, "terms": {"OnDemand": terms}}


@pytest.fixture
def served() -> dict[str, Any]:
    """The documents of the price list, by URL: one region, and the index."""
    path = "/offers/v1.0/aws/AmazonKinesis/20261101000000/{}/index.json"
    index = {
        region: {"regionCode": region, "currentVersionUrl": path.format(region)}
        for region in ("eu-west-1", "us-east-1", "me-west-1")
    }
    return {
        f"{HOST}/offers/v1.0/aws/AmazonKinesis/current/region_index.json": {"formatVersion": "v1.0", "regions": index},
        HOST + path.format("eu-west-1"): offer("EU-"),
        HOST + path.format("us-east-1"): offer(""),
        HOST + path.format("me-west-1"): offer("MEW1-", without="Advantage"),
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the prices that there are."""
    (tmp_path / "prices.json").write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path / "prices.json"


def test_prices_of_a_region_are_read(served: dict[str, Any], file: Path) -> None:
    lines = script.refresh(served.__getitem__, file)
    assert lines == [
        "eu-west-1: of 2026-11-01",
        (
            "me-west-1: of 2026-11-01; without gb_in_on_demand_advantage, gb_out_on_demand_advantage, gb_on_demand_advantage, "
            "extended_gb_month_advantage"
        ),
        "us-east-1: of 2026-11-01",
    ]
    known = prices_of("eu-west-1", file)
    assert known is not None
    assert (known.region, known.date) == ("eu-west-1", "2026-11-01")
    assert {name: getattr(known, name) for name in FIGURES} == EXPECTED
    assert set(EXPECTED) == set(FIGURES)
    israel = prices_of("me-west-1", file)
    assert israel is not None
    assert (israel.shard_hour, israel.gb_on_demand_advantage) == (0.017, None)
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["regions"]["us-east-2"] == kept["regions"]["us-east-2"], "what is not in the list stays"
    assert written["elsewhere"] == kept["elsewhere"]


def test_unusable_price_list_changes_nothing(
    served: dict[str, Any], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = json.loads(file.read_text(encoding="utf-8"))
    served[next(url for url in served if "us-east-1/index.json" in url)] = offer("", without="EnhancedFanout")
    lines = script.refresh(served.__getitem__, file, ("us-east-1",))
    assert lines == ["us-east-1: left as it was; the price list lacks consumer_shard_hour"]

    def no_network(_: str) -> Any:
        raise OSError("no route to host")

    for get, said in ((no_network, "no route to host"), (lambda _: {}, "is not the index of a service")):
        assert script.main(["--file", str(file)], get) == 1
        assert said in capsys.readouterr().err
    assert json.loads(file.read_text(encoding="utf-8"))["regions"]["us-east-1"] == before["regions"]["us-east-1"]
