"""Signals that come while one before them is handled."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from kinesis_efo.spark.lifecycle import Asked


@pytest.mark.timeout(20)
def test_asked_again_at_every_step_of_being_asked_it_blocks_nobody_and_counts_once() -> None:
    asked, first = Asked(), []

    def again(_frame: FrameType, _event: str, _argument: object) -> None:
        sys.setprofile(None)
        first.append(asked.set())
        sys.setprofile(again)

    sys.setprofile(again)
    try:
        first.append(asked.set())
    finally:
        sys.setprofile(None)
    assert asked.is_set()
    assert len(first) > 1
    assert first.count(True) == 1
