"""Random queries that end, from seeds, in virtual time: each has read what was acknowledged before its start, once and in order.

`make test` plays ten; `make seeds` 1,000: `KINESIS_EFO_SEEDS` says which.
"""

import os

import pytest

from tests.emulator.ends import play_ends

FIRST, LAST = map(int, os.environ.get("KINESIS_EFO_SEEDS", "0:10").split(":"))
TOGETHER = 10
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(FIRST, LAST, TOGETHER))
def test_query_that_ends_has_read_everything_before_its_end(first: int) -> None:
    outcomes = [play_ends(seed) for seed in range(first, min(first + TOGETHER, LAST))]
    # Scenarios in which nothing had to be read would prove nothing.
    assert sum(outcome.owed for outcome in outcomes) > 10 * len(outcomes)
    assert sum(outcome.runs for outcome in outcomes) >= len(outcomes)


@pytest.mark.parametrize("mode", ["polling", "efo", "efo alone", "neighbour", "neighbour alone"])
@pytest.mark.parametrize("end", ["tips", "once", "time"])
def test_query_that_ends_does_not_believe_one_empty_answer(mode: str, end: str) -> None:
    """300 records are acknowledged two seconds before the start."""
    if (mode, end) == ("neighbour alone", "time"):
        end = "tips"
    for seed in range(4):
        case = {"mode": mode, "end": end, "quiet": True, "backlog": 300, "age": 2.0, "buffer": 4 << 20, "reshards": 0}
        assert play_ends(seed, **case).runs
