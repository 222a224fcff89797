"""The token bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo_local.limits import Bucket


@given(st.lists(st.floats(1, 500), min_size=1, max_size=100))
def test_bucket_passes_the_rate_and_one_burst(costs: list[float]) -> None:
    bucket, now = Bucket(100, 0), 0.0
    for index, cost in enumerate(costs):
        delay = bucket.delay(cost, now)
        now += delay
        assert bucket.delay(cost, now) == 0
        bucket.take(cost)
        # A cost above the burst passes as a whole, so the last one is counted by what it had to wait for.
        assert sum(costs[:index]) + min(cost, 100) <= 100 + 100 * now + 1e-6


def test_waiting_refills_one_second_at_most() -> None:
    bucket = Bucket(100, 0)
    bucket.take(100)
    assert bucket.delay(50, 0) == pytest.approx(0.5)
    assert bucket.delay(100, 1000) == 0
    bucket.take(100)
    assert bucket.delay(1, 1000) > 0
    assert bucket.delay(1, 995) > 0, "a clock that jumps back refills nothing"
