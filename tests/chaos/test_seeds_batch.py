"""Random batch reads, from seeds, in virtual time: each row once, and what retention takes is an error or a warning.

`make test` plays ten; `make seeds` 1,000: `KINESIS_EFO_SEEDS` says which.
"""

from __future__ import annotations

import os

import pytest

from tests.emulator.batches import play_batches

FIRST, LAST = map(int, os.environ.get("KINESIS_EFO_SEEDS", "0:10").split(":"))
TOGETHER = 10
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(FIRST, LAST, TOGETHER))
def test_batch_read_has_each_row_once_or_names_the_loss(first: int) -> None:
    outcomes = [play_batches(seed) for seed in range(first, min(first + TOGETHER, LAST))]
    # Scenarios in which nothing was read, or all reads fail, would prove nothing.
    assert sum(outcome.rows for outcome in outcomes) > 20 * len(outcomes)
    assert sum(outcome.whole for outcome in outcomes) > len(outcomes) / 2
