"""Marks of when the records of an event arrived."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.records.events import read_arrivals


def payload(*arrivals: float | None) -> bytes:
    records = [
        {"SequenceNumber": str(10**60 + number), "Data": "eA==", "ApproximateArrivalTimestamp": arrived}
        for number, arrived in enumerate(arrivals)
    ]
    return json.dumps({"Records": records, "MillisBehindLatest": 0}).encode()


@given(st.lists(st.integers(0, 100_000), max_size=50), st.integers(1, 20_000))
def test_every_record_is_in_one_short_mark(arrivals: list[int], step: int) -> None:
    groups = read_arrivals(payload(*(each / 1000 for each in arrivals)), step)
    left = list(enumerate(arrivals))
    for mark in groups:
        some, left = left[: mark.records], left[mark.records :]
        assert mark.earliest == min(arrived for _, arrived in some)
        assert mark.latest == max(arrived for _, arrived in some)
        assert mark.latest - mark.earliest <= step
        assert mark.through == 10**60 + some[-1][0]
    assert left == []


def test_a_steady_trickle_is_a_few_marks() -> None:
    groups = read_arrivals(payload(*(1_700_000_000 + second for second in range(1200))), 3_000)
    assert len(groups) == 300
    assert groups[0].earliest == 1_700_000_000_000 and groups[-1].latest == 1_700_001_199_000


@pytest.mark.parametrize("wrong", [payload(1.0, None, 3.0), b"", b"[]", b'{"Records":[{}]}', b"\xff", payload()])
def test_unreadable_arrivals_give_no_marks(wrong: bytes) -> None:
    assert read_arrivals(wrong, 1_000) == ()
