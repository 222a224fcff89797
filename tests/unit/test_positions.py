"""Positions, offsets and the ranges between them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, ShardRange

numbers = st.integers(0, 10**129 - 1)
positions = st.one_of(
    st.sampled_from([TRIM_HORIZON, SHARD_END]),
    st.builds(Position.after, numbers),
    st.builds(Position.at_timestamp, st.integers(0, 10**13)),
    st.builds(Position.inside, numbers, st.integers(0, 10**6)),
)
names = st.text(min_size=1, max_size=8)
offsets = st.dictionaries(st.builds(ShardKey, names, names), positions, max_size=8).map(Offset)


@given(positions)
def test_a_position_survives_its_text_form(position: Position) -> None:
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    ["", "LATEST", "AFTER", "AFTER:", "AFTER:-1", "AFTER:+1", "AFTER: 1", "AFTER:1_0", "AFTER:٣", "AFTER:1.5", "after:1",
     "TRIM_HORIZON:", "SHARD_END:1", "AT_TIMESTAMP", "AT_TIMESTAMP:now", "kind", "INSIDE:1", "INSIDE:1:2:3", "INSIDE:1:x", "AFTER:1:2", "AFTER:" + "9" * 201],
)  # fmt: skip
def test_texts_that_are_not_positions(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position: expected TRIM_HORIZON, SHARD_END"):
        Position.parse(text)


@given(numbers, numbers)
def test_sequence_numbers_compare_as_numbers(one: int, other: int) -> None:
    assert Position.after(one).reaches(Position.after(other)) == (one >= other)


def test_numbers_of_different_lengths() -> None:
    assert not Position.after("9").reaches(Position.after("10"))
    assert Position.after("00010") == Position.after("10")


@given(positions, positions)
def test_reaching_is_an_order_that_never_skips(one: Position, other: Position) -> None:
    assert one.reaches(one)
    assert SHARD_END.reaches(one)
    assert not one.reaches(SHARD_END) or one.is_end
    if one.reaches(other) and other.reaches(one):
        assert one == other


@given(positions, positions, positions)
def test_reaching_is_transitive(one: Position, two: Position, three: Position) -> None:
    if one.reaches(two) and two.reaches(three):
        assert one.reaches(three)


@given(offsets)
def test_an_offset_survives_sparks_log(offset: Offset) -> None:
    again = Offset.from_dict(json.loads(offset.to_json()))
    assert again == offset
    assert again.to_json() == offset.to_json() == Offset.from_json(offset.to_json()).to_json()


@given(offsets, st.randoms())
def test_equal_offsets_have_equal_texts(offset: Offset, random: Any) -> None:
    """Spark compares offsets as text: another order of keys would be another micro-batch, for ever."""
    items = list(offset.items())
    random.shuffle(items)
    assert Offset(dict(items)).to_json() == offset.to_json()
    assert " " not in offset.to_json() or " " in str(items)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a kinesis-efo offset"),
        ("[]", "not a kinesis-efo offset"),
        ('{"streams":{}}', "missing required field `version`"),
        ('{"version":2,"streams":{}}', "has version 2, this library reads version 1"),
        ('{"version":1,"streams":{"o":{"s":"12"}}}', "'12' is not a position"),
        ('{"version":1,"streams":{"o":{"s":12}}}', "not a kinesis-efo offset"),
        ('{"version":1,"streams":{"o":["s"]}}', "not a kinesis-efo offset"),
    ],
)
def test_offsets_that_are_not_ours(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Offset.from_json(text)


def test_ranges_lie_between_two_offsets() -> None:
    one, two, three, child = (ShardKey("o", name) for name in ("1", "2", "3", "4"))
    begin = Offset({one: TRIM_HORIZON, two: SHARD_END, three: Position.after(5)})
    end = Offset({one: Position.after(7), three: Position.after(5), child: Position.after(3)})
    assert begin.ranges_to(end) == [
        ShardRange(one, TRIM_HORIZON, Position.after(7)),
        ShardRange(child, TRIM_HORIZON, Position.after(3)),
    ]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), max_size=3), max_size=6))
def test_ranges_of_consecutive_offsets_have_no_gap_and_no_overlap(steps: list[dict[str, int]]) -> None:
    at = Offset({ShardKey("o", name): Position.after(0) for name in "abc"})
    reached = dict.fromkeys("abc", 0)
    for step in steps:
        following = Offset(
            {key: Position.after(position.value + step.get(key.shard, 0)) for key, position in at.items()}
        )
        for key, after, through, _ in at.ranges_to(following):
            assert after.value == reached[key.shard]
            reached[key.shard] = through.value
        at = following
    assert {key.shard: position.value for key, position in at.items()} == reached
