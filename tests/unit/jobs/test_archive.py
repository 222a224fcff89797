"""The parts of the archive job that need no Spark session."""

from __future__ import annotations

import pytest
import typer

from jobs.archive import pairs


def test_options_may_hold_equals_signs() -> None:
    assert pairs(["externalId=a=b", "pollTimeout=1s"]) == {"externalId": "a=b", "pollTimeout": "1s"}


@pytest.mark.parametrize("text", ["bufferBytes", "=64m", ""])
def test_an_option_without_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME=VALUE") as refused:
        pairs([text])
    assert repr(text) in str(refused.value)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="given twice: '64m' and '1g'"):
        pairs(["bufferBytes=64m", "BufferBytes=1g"])
