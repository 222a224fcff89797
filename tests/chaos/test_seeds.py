"""Random mixtures of everything that can go wrong, from seeds, in virtual time: what is written is read, once, in order per key,
or the query fails with the error that the oracle expects, and goes on where it was once it is started again.

Each scenario takes a simulated half minute of trouble and as long as it needs after it. `make test` plays 26 of them, `make seeds` 1,250:
`KINESIS_EFO_SEEDS` says which.
"""

import os

import pytest

from tests.emulator.scenario import Outcome, play

FIRST, LAST = map(int, os.environ.get("KINESIS_EFO_SEEDS", "0:20").split(":"))
MOVING = FIRST + (LAST - FIRST) // 4
TOGETHER = 20
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(FIRST, LAST, TOGETHER))
def test_written_records_are_read_once_or_an_error_comes(first: int) -> None:
    outcomes = [play(seed) for seed in range(first, min(first + TOGETHER, LAST))]
    # A scenario in which nothing happened would prove nothing.
    assert sum(outcome.records for outcome in outcomes) > 100 * len(outcomes)
    assert sum(sum(outcome.faults.values()) for outcome in outcomes) > 5 * len(outcomes)
    assert sum(sum(outcome.moves.values()) for outcome in outcomes) > len(outcomes)


@pytest.mark.parametrize("first", range(FIRST, MOVING, TOGETHER))
def test_query_that_changes_its_read_mode_reads_once(first: int) -> None:
    outcomes = [play(seed, moves=True) for seed in range(first, min(first + TOGETHER, MOVING))]
    assert sum(outcome.records for outcome in outcomes) > 100 * len(outcomes)
    assert sum(sum(outcome.faults.values()) for outcome in outcomes) > 5 * len(outcomes)


def test_the_same_seed_plays_the_same_scenario() -> None:
    assert summary(play(3)) == summary(play(3))


def summary(outcome: Outcome) -> tuple[int, int, dict[str, int], list[str]]:
    return outcome.records, outcome.runs, dict(outcome.faults), outcome.errors
