"""Random batch reads, from seeds, in virtual time: each row once, and what retention takes is an error or a warning.

`make test` plays ten; `make seeds` 1,000: `KINESIS_EFO_SEEDS` says which.
"""

import os

import pytest

from tests.emulator.batches import play_batches

FIRST, LAST = map(int, os.environ.get("KINESIS_EFO_SEEDS", "0:10").split(":"))
TOGETHER = 50
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["default", "since"])
def test_stream_created_again_while_tasks_wait_fails_each_task(kind: str) -> None:
    fixed = {
        "reshards": 0,
        "days": 0.01,
        "listing_age": 0.0,
        "skew": 0.0,
        "repeats": False,
        "twice": False,
        "waits": 0.0,
    }
    outcome = play_batches(1, kind=kind, recreate=True, shards=2, fail=False, burst=False, quiet=False, **fixed)
    assert (outcome.rows, outcome.losses) == (0, 2)


def test_lost_shards_that_are_newer_than_the_plan_are_named() -> None:
    play_batches(34)


def test_old_list_of_the_shards_open_at_the_end_loses_none() -> None:
    play_batches(164)


@pytest.mark.parametrize("first", range(FIRST, LAST, TOGETHER))
def test_batch_read_has_each_row_or_names_the_loss(first: int) -> None:
    outcomes = [play_batches(seed) for seed in range(first, min(first + TOGETHER, LAST))]
    # Scenarios in which nothing was read, or all reads fail, would prove nothing.
    assert sum(outcome.rows for outcome in outcomes) > 20 * len(outcomes)
    assert sum(outcome.whole for outcome in outcomes) > len(outcomes) / 2
