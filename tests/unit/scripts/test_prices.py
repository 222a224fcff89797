"""Prices are read from files of the form that AWS documents for its price list; the files here are made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo_infra.pipeline.prices import FIGURES, FILE, prices_of
from scripts import prices as script

HOST = "https://pricing.us-east-1.amazonaws.com"
USAGE = {
    "Storage-ShardHour": ("Provisioned shard hour", "0.017"),
    "Extended-ShardHour": ("Addon shard hour", "0.023"),
    "EnhancedFanoutHour": ("Enhanced fan-out consumer-shard hour", "0.0165"),
    "ReadBytes": ("Enhanced fan-out GB of data retrieved", "0.014"),
    "PutRequestPayloadUnits": ("Payload Units", "0.0000000165"),
    "OnDemand-StreamHour": ("OnDemand", "0.044"),
    "OnDemand-BilledIncomingBytes": ("OnDemand", "0.088"),
    "OnDemand-BilledOutgoingBytes": ("OnDemand", "0.044"),
    "OnDemand-BilledOutgoingEFOBytes": ("OnDemand", "0.055"),
    "OnDemand-ExtendedRetention-ByteHrs": ("OnDemand", "0.11"),
    "OnDemand-LongTermRetention-ByteHrs": ("OnDemand", "9.9"),
    "LongTermRetention-ByteHrs": ("Long-term Data Retention GB-month", "0.025"),
    "LongTermRetention-ReadBytes": ("Long-term Data Retrieval", "8.8"),
    "On-demand-Advantage-BilledIncomingBytes": ("OnDemand Advantage", "0.035"),
    "On-demand-Advantage-BilledOutgoingBytes": ("OnDemand Advantage", "0.0175"),
    "On-demand-Advantage-BilledOutgoingEFOBytes": ("OnDemand Advantage", "0.0176"),
    "On-demand-Advantage-ExtendedRetention-ByteHrs": ("OnDemand Advantage", "0.0255"),
    "On-demand-Advantage-Channel-ProcessedBytes-S3TablesDestination": ("OnDemand Advantage", "7.7"),
}
EXPECTED = {
    "shard_hour": 0.017,
    "extended_shard_hour": 0.023,
    "consumer_shard_hour": 0.0165,
    "gb_provisioned": 0.014,
    "million_put_units": 0.0165,
    "stream_hour": 0.044,
    "gb_in_on_demand": 0.088,
    "gb_out_on_demand": 0.044,
    "gb_on_demand": 0.055,
    "extended_gb_month": 0.11,
    "long_term_gb_month": 0.025,
    "gb_in_on_demand_advantage": 0.035,
    "gb_out_on_demand_advantage": 0.0175,
    "gb_on_demand_advantage": 0.0176,
    "extended_gb_month_advantage": 0.0255,
}


def offer(prefix: str, without: str = "nothing") -> dict[str, Any]:
    """A price list file of one region. Source of its form: AWS Billing user guide, "Reading the service price list file"."""
    rows = {f"{prefix}{usage}": row for usage, row in USAGE.items() if without not in usage}
    return {
        "formatVersion": "v1.0",
        "offerCode": "AmazonKinesis",
        "version": "20261101000000",
        "publicationDate": "2026-11-01T12:00:00Z",
        "products": {
            f"SKU{n}": {
                "sku": f"SKU{n}",
                "productFamily": "Kinesis Streams",
                "attributes": {"servicecode": "AmazonKinesis", "usagetype": usage, "group": group},
            }
            for n, (usage, (group, _)) in enumerate(rows.items())
        },
        "terms": {
            "OnDemand": {
                f"SKU{n}": {
                    f"SKU{n}.JRTCKXETXF": {
                        "offerTermCode": "JRTCKXETXF",
                        "sku": f"SKU{n}",
                        "effectiveDate": "2026-11-01T00:00:00Z",
                        "priceDimensions": {
                            f"SKU{n}.JRTCKXETXF.6YS6EN2CT7": {
                                "beginRange": "0",
                                "endRange": "Inf",
                                "unit": "x",
                                "pricePerUnit": {"USD": price},
                            }
                        },
                    }
                }
                for n, (_, price) in enumerate(rows.values())
            }
        },
    }


@pytest.fixture
def served() -> dict[str, Any]:
    """The documents of the price list, by URL: one region, and the index."""
    path = "/offers/v1.0/aws/AmazonKinesis/20261101000000/{}/index.json"
    index = {
        region: {"regionCode": region, "currentVersionUrl": path.format(region)}
        for region in ("eu-west-1", "us-east-1", "me-west-1")
    }
    return {
        script._INDEX: {"formatVersion": "v1.0", "regions": index},
        HOST + path.format("eu-west-1"): offer("EU-"),
        HOST + path.format("us-east-1"): offer(""),
        HOST + path.format("me-west-1"): offer("MEW1-", without="Advantage"),
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the prices that there are."""
    (tmp_path / "prices.json").write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path / "prices.json"


def test_the_prices_of_a_region_are_read(served: dict[str, Any], file: Path) -> None:
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


def test_usage_types_as_in_the_list_of_another_region_are_known(served: dict[str, Any], file: Path) -> None:
    # As in the list of ap-northeast-1 of July 2026, whose figures are in `prices.json` already.
    figures = {
        "APN1-Storage-ShardHour": ("Provisioned shard hour", "0.0195000000"),
        "APN1-PutRequestPayloadUnits": ("Payload Units", "0.0000000215"),
        "APN1-OnDemand-BilledIncomingBytes": ("OnDemand", "0.1040000000"),
        "APN1-OnDemand-BilledOutgoingBytes": ("OnDemand", "0.0520000000"),
        "APN1-OnDemand-StreamHour": ("OnDemand", "0.0520000000"),
        "APN1-Advantage-BilledOutgoingBytes": ("OnDemand Advantage", "0.0208000000"),
    }
    whole = offer("")
    for (usage, (group, price)), (sku, product) in zip(figures.items(), whole["products"].items(), strict=False):
        product["attributes"] = {"usagetype": usage, "group": group}
        (term,) = whole["terms"]["OnDemand"][sku].values()
        (dimension,) = term["priceDimensions"].values()
        dimension["pricePerUnit"] = {"USD": price}
    first = dict(list(whole["products"].items())[: len(figures)])
    found = script.prices({**whole, "products": first})
    assert found == {
        "shard_hour": 0.0195,
        "million_put_units": 0.0215,
        "gb_in_on_demand": 0.104,
        "gb_out_on_demand": 0.052,
        "stream_hour": 0.052,
        "gb_out_on_demand_advantage": 0.0208,
    }
    # Its other prices are not in this excerpt: then nothing is written over what there is.
    served[script._INDEX]["regions"] = {"ap-northeast-1": {"currentVersionUrl": "/x"}}
    served[HOST + "/x"] = {**whole, "products": first}
    (line,) = script.refresh(served.__getitem__, file)
    assert line.startswith(
        "ap-northeast-1: left as it was; the price list lacks extended_shard_hour, consumer_shard_hour"
    )


def test_half_of_a_price_list_is_none(served: dict[str, Any], file: Path) -> None:
    url = next(url for url in served if "us-east-1/index.json" in url)
    served[url] = offer("", without="EnhancedFanout")
    before = json.loads(file.read_text(encoding="utf-8"))["regions"]["us-east-1"]
    lines = script.refresh(served.__getitem__, file, ("us-east-1",))
    assert lines == ["us-east-1: left as it was; the price list lacks consumer_shard_hour"]
    assert json.loads(file.read_text(encoding="utf-8"))["regions"]["us-east-1"] == before


def test_a_price_list_that_cannot_be_read_writes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_bytes()

    def no_network(_: str) -> Any:
        raise OSError("no route to host")

    assert script.main(["--file", str(file)], no_network) == 1
    assert "no route to host" in capsys.readouterr().err
    assert script.main(["--file", str(file)], lambda _: {}) == 1
    assert "is not the index of a service" in capsys.readouterr().err
    assert file.read_bytes() == before
