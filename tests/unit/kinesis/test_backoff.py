"""Backoff: how long, how often, and what is remembered."""

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.kinesis.faults import Backoff
from kinesis_efo.options import RetrySettings
from kinesis_efo.patience import jitter


def test_by_default_delays_grow_to_ten_seconds() -> None:
    longest = [jitter(RetrySettings(), failures, lambda: 1.0) for failures in range(1, 9)]
    assert longest == [1.0, 1.5, 2.25, 3.375, 5.0625, 7.59375, 10.0, 10.0]


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True), st.floats(1, 10), st.integers(1, 60_000))
def test_jitter_is_full_and_bounded(failures: int, chance: float, factor: float, most: int) -> None:
    settings = RetrySettings(base_ms=1000, max_ms=most, factor=factor)
    assert 0 <= jitter(settings, failures, lambda: chance) <= most / 1000
    assert jitter(settings, failures, lambda: 0.0) == 0


@given(
    st.floats(1, 7 * 86_400),
    st.integers(1, 600_000),
    st.lists(st.floats(0, 100), min_size=1),
    st.floats(0, 1, exclude_max=True),
)
def test_gives_up_after_failing_for_the_timeout(
    timeout: float, longest: int, tries: list[float], chance: float
) -> None:
    backoff = Backoff(RetrySettings(base_ms=1, max_ms=longest, factor=10, timeout=timeout), lambda: chance)
    now = began = 1000.0
    for seconds in tries:
        delay = backoff.failed(RuntimeError(), now)
        assert (delay is None) == (now - began >= timeout)
        if delay is None:
            return
        now += delay + seconds


def test_progress_and_pauses_do_not_count_as_failing() -> None:
    backoff = Backoff(RetrySettings(base_ms=1, max_ms=1, timeout=60), lambda: 0.0)
    assert backoff.failed(RuntimeError(), 0.0) is not None
    assert backoff.failed(RuntimeError(), 59.0) is not None
    backoff.reset()
    assert backoff.failed(RuntimeError(), 100.0) is not None
    # The lease was lost for an hour: not a single try was made.
    assert backoff.failed(RuntimeError(), 3700.0) is not None
    assert backoff.failures == 2
    assert backoff.failed(RuntimeError(), 3760.0) is None
    assert backoff.seconds == 60.0
