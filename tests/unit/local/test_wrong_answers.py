"""Which wrong answers the local Kinesis gives, and how often."""

from random import Random

import pytest

from kinesis_efo_local import Settings
from kinesis_efo_local.wrong_answers import KINDS, WrongAnswers, parse_kinds


def test_kinds_are_named_or_all() -> None:
    assert parse_kinds("") == frozenset()
    assert parse_kinds("quiet, behind") == {"quiet", "behind"}
    assert parse_kinds("all") == set(KINDS)
    with pytest.raises(
        ValueError,
        match=r"wrong_answers: 'loud' is not a kind of wrong answers: behind, empty, last-number, no-shards, quiet, all",
    ):
        Settings(wrong_answers="quiet,loud")
    with pytest.raises(ValueError, match=r"wrong_answers_rate must be at most 1; got 1.5"):
        Settings(wrong_answers_rate=1.5)


def test_wrong_answers_end_and_are_of_their_kind() -> None:
    wrong = WrongAnswers({"quiet"}, 1.0, 3, Random(1))
    assert [wrong.hides("one") for _ in range(8)] == [True, True, True, False, True, True, True, False]
    assert wrong.hides("other")
    wrong = WrongAnswers({"no-shards"}, 1.0, 1, Random(1))
    assert [wrong.hides_shards("one"), wrong.hides_shards("one"), wrong.hides_shards("other")] == [True, False, True]
    assert not wrong.hides("one")
    wrong = WrongAnswers({"behind"}, 1.0, 1, Random(1))
    assert (wrong.lag(0) > 0, wrong.lag(5)) == (True, 5)
