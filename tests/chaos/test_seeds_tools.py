"""Random scenarios of the commands that change leases, beside queries and KCL applications that come and go; `make seeds` plays 1,000."""

import os
from collections import Counter

import pytest

from tests.emulator.tools import play

FIRST, LAST = map(int, os.environ.get("KINESIS_EFO_SEEDS", "0:10").split(":"))
TOGETHER = 50
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(FIRST, LAST, TOGETHER))
def test_confirmed_commands_lose_and_repeat_nothing(first: int) -> None:
    played = [play(seed) for seed in range(first, min(first + TOGETHER, LAST))]
    # Scenarios in which every command is refused would prove nothing.
    assert Counter(each.ended for each in played)["done"] > len(played) // 5


def test_same_seed_plays_same_scenario() -> None:
    assert play(3) == play(3)
