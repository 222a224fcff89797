"""What docs/sizing.md says of the bytes of a micro-batch is what an event of Kinesis occupies in the buffer."""

import json
import re
from base64 import b64encode
from itertools import product
from pathlib import Path

import pytest

from kinesis_efo.fetcher.budget import EVENT_OVERHEAD
from kinesis_efo.records.events import data_in, read_head

PAGE = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()
FACTORS = dict(zip((20, 100, 1_000, 10_000), map(float, re.findall(r"([\d.]+) times", PAGE)), strict=True))


def event(size: int, records: int, key: str = "customer-{:03}", *, encrypted: bool = True) -> bytes:
    """An event as the service writes it, with keys of 12 characters."""
    number = 49590338271490256608559692538361571095921575989136588898
    return json.dumps(
        {
            "ContinuationSequenceNumber": str(number + records),
            "MillisBehindLatest": 0,
            "Records": [
                {
                    "ApproximateArrivalTimestamp": 1.700000000123e9,
                    "Data": b64encode(b"x" * size).decode(),
                    **({"EncryptionType": "KMS"} if encrypted else {}),
                    "PartitionKey": key.format(each),
                    "SequenceNumber": str(number + each),
                }
                for each in range(records)
            ],
        },
        separators=(",", ":"),
    ).encode()


@pytest.mark.parametrize("size", FACTORS)
def test_the_factors_are_those_of_an_event(size: int) -> None:
    payload = event(size, 500)
    assert read_head(payload).records == 500
    if size >= 100:
        assert data_in(len(payload), 500) == pytest.approx(500 * size, rel=0.1), "about what `top` shows"
    for records in (1, 10):
        small = len(event(size, records))
        assert data_in(small, records, 1) == pytest.approx(records * size, rel=0.15, abs=5 * records), (
            "in few records, too"
        )
    counted = (len(payload) + EVENT_OVERHEAD) / (500 * size)
    assert counted == pytest.approx(FACTORS[size], rel=0.05)


def test_limits_count_data_to_some_bytes() -> None:
    off = int(re.findall(r"off by\s+at\s+most\s+(\d+)\s+bytes\s+per\s+record", PAGE)[0])
    for key, encrypted, records in product(("k", "{:036}"), (True, False), (1, 500)):
        payload = event(100, records, key, encrypted=encrypted)
        assert data_in(len(payload), records, 1) == pytest.approx(100 * records, abs=off * records)
