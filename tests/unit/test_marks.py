"""Marks of checkpoints as offsets carry them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.positions import TRIM_HORIZON, Mark, Offset, Position, ShardKey

SHARD = ShardKey("orders", "shardId-000000000000")
marks = st.builds(Mark, st.text("0123456789abcdef", min_size=1, max_size=8), st.integers(0, 10**12))


@given(marks)
def test_an_offset_keeps_its_mark(mark: Mark) -> None:
    offset = Offset({SHARD: Position.after(5)}, {SHARD: 4}, mark)
    again = Offset.from_json(offset.to_json())
    assert (again, again.mark, again.to_json()) == (offset, mark, offset.to_json())
    assert offset != Offset({SHARD: Position.after(5)}, {SHARD: 4}, mark.moved_on())
    assert offset.without({"clicks"}).mark == mark


def test_the_mark_counts_moving_micro_batches() -> None:
    begin = Offset({SHARD: TRIM_HORIZON}, mark=Mark("7c1f"))
    assert begin.moved_to(dict(begin), {SHARD: 3}) is begin, "Spark would take another text for a micro-batch"
    moved = begin.moved_to({SHARD: Position.after(5)}, {}, Mark("beef"))
    assert moved.mark == Mark("7c1f", 1)
    assert moved.moved_to({SHARD: Position.after(6)}, {}).mark == Mark("7c1f", 2)


def test_an_earlier_offset_gets_a_mark_on_moving() -> None:
    old = Offset.from_json('{"streams":{"orders":{"shardId-000000000000":"AFTER:5"}},"version":1}')
    assert old.mark is None
    assert old.moved_to(dict(old), {}, Mark("beef")) is old
    assert old.moved_to({SHARD: Position.after(6)}, {}, Mark("beef")).mark == Mark("beef", 1)
    assert old.moved_to({SHARD: Position.after(6)}, {}).mark is None


@pytest.mark.parametrize("text", ["7c1f", "7c1f:", ":3", "7c1f:-1", "7C1F:1", "7c1f:1:2", "7c1f:+1", "7c1f:\u0661"])
def test_a_malformed_mark_is_refused(text: str) -> None:
    document = {"version": 1, "streams": {"o": {"s": "AFTER:12"}}, "mark": text}
    with pytest.raises(ValueError, match="not a kinesis-efo offset: its mark is"):
        Offset.from_json(json.dumps(document))
