"""Positions, offsets, their marks, and the ranges between them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Mark, Offset, Position, ShardKey, ShardRange
from kinesis_efo.run.access import AnyCall, Begin
from kinesis_efo.run.messages import OffsetsOfLink

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


@pytest.mark.parametrize(
    ("at", "reached"),
    [("AFTER:11", False), ("AFTER:12", True), ("INSIDE:11:9", False), ("INSIDE:12:2", False), ("INSIDE:12:3", True), ("INSIDE:13:0", True)],
)  # fmt: skip
def test_a_position_inside_a_record_is_ordered(at: str, reached: bool) -> None:
    inside = Position.inside(12, 3)
    assert Position.parse(at).reaches(inside) is reached
    assert [inside.reaches(Position.after(number)) for number in (11, 12)] == [True, False]


@given(positions, positions)
def test_reaching_is_an_order(one: Position, other: Position) -> None:
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


@given(offsets, st.lists(positions, max_size=4), offsets)
def test_data_copied_from_another_offset_is_equal(before: Offset, moved: list[Position], other: Offset) -> None:
    for after in (Offset(before | dict(zip(before, moved, strict=False))), Offset(before | dict(other)), other):
        copied = after.to_dict(known=(before, before.to_dict()))
        assert json.dumps(copied) == json.dumps(after.to_dict())


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 5), max_size=3), max_size=6))
def test_ranges_of_consecutive_offsets_tile(steps: list[dict[str, int]]) -> None:
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


def test_offset_keeps_when_its_streams_were_created() -> None:
    orders, clicks = (ShardKey(name, "shardId-000000000000") for name in ("orders", "clicks"))
    begin = Offset({orders: TRIM_HORIZON}, created={"orders": 1_700_000_000})
    added = Offset({clicks: TRIM_HORIZON}, created={"clicks": 1_700_000_001})
    moved = begin.moved_to({orders: Position.after(5), **added}, {}, added=added)
    for end in (moved, moved.moved_to({**moved, orders: Position.after(9)}, {})):
        sent = OffsetsOfLink(1).decode(OffsetsOfLink(0).encode(Begin(resumed=end)), AnyCall).resumed
        for again in (end, Offset.from_json(end.to_json()), sent):
            assert again.created == {"orders": 1_700_000_000, "clicks": 1_700_000_001}
            assert again.without({"clicks"}).created == begin.created
    assert "created" not in Offset({orders: TRIM_HORIZON}).to_json(), "unless it is known"


ORDERS, CLICKS = ShardKey("orders", "shardId-000000000000"), ShardKey("orders", "shardId-000000000001")


def test_offset_keeps_a_low_watermark_until_the_position_moves() -> None:
    begin = Offset({ORDERS: TRIM_HORIZON, CLICKS: Position.after(5)})
    proven = begin.moved_to(begin, {}, until={ORDERS: 7.5, CLICKS: 8.0})
    assert proven.moved_to(proven, {}) is proven is not begin
    moved = proven.moved_to({**proven, CLICKS: Position.after(6)}, {})
    sent = OffsetsOfLink(1).decode(OffsetsOfLink(0).encode(Begin(resumed=moved)), AnyCall).resumed
    for again in (moved, Offset.from_json(moved.to_json()), sent):
        assert [again.proof(key, again[key]) for key in (ORDERS, CLICKS)] == [7.5, None]
        assert again.proof(ORDERS, Position.after(1)) is None
        assert not again.without({"orders"}).until


def test_unchanged_low_watermarks_are_sent_once() -> None:
    one, other = OffsetsOfLink(0), OffsetsOfLink(1)
    proven = Offset({ORDERS: TRIM_HORIZON, CLICKS: Position.after(5)}, until={ORDERS: 7.5})
    other.decode(one.encode(Begin(resumed=proven)), AnyCall)
    one.decode(other.encode(Begin(resumed=proven)), AnyCall)
    for until, sent in ({ORDERS: 7.5}, False), ({}, False), ({ORDERS: 9.5}, True):
        message = one.encode(Begin(resumed=Offset({**proven, CLICKS: Position.after(6)}, until=until)))
        assert other.decode(message, AnyCall).resumed.until == until
        assert (b".5" in bytes(message)) is sent


@given(st.lists(st.tuples(offsets, st.dictionaries(st.integers(0, 7), numbers)), min_size=1, max_size=6))
def test_offsets_survive_the_way_between_two_processes(sent: list[tuple[Offset, dict[int, int]]]) -> None:
    one, other = OffsetsOfLink(0), OffsetsOfLink(1)
    for offset, lasts in sent:
        whole = Offset(offset, {key: lasts[place] for place, key in enumerate(offset) if place in lasts})
        received = other.decode(one.encode(Begin(resumed=whole)), AnyCall).resumed
        assert (received, received.lasts) == (whole, whole.lasts)
        again = one.decode(other.encode(Begin(kept=received)), AnyCall).kept
        assert (again, again.lasts) == (whole, whole.lasts)


@given(numbers, st.integers(0, 10**60))
def test_an_offset_keeps_last_records(last: int, distance: int) -> None:
    offset = Offset({ORDERS: Position.after(last + distance), CLICKS: SHARD_END}, {ORDERS: last, CLICKS: last})
    again = Offset.from_json(offset.to_json())
    assert again == offset
    assert again.lasts == {ORDERS: last, CLICKS: last}
    assert again.to_json() == offset.to_json()


def test_a_range_ends_at_its_last_record() -> None:
    begin = Offset({ORDERS: Position.after(10), CLICKS: Position.inside(10, 2)}, {ORDERS: 9})
    end = Offset({ORDERS: Position.after(20), CLICKS: Position.after(20)}, {ORDERS: 10, CLICKS: 10})
    assert begin.ranges_to(end) == [
        ShardRange(ORDERS, Position.after(10), Position.after(20)),
        ShardRange(CLICKS, Position.inside(10, 2), Position.after(20), 10),
    ]


def test_last_records_alone_never_change_an_offset() -> None:
    """Spark takes another text for a new micro-batch: one without rows would follow the other for ever."""
    before = Offset({ORDERS: Position.after(20), CLICKS: TRIM_HORIZON}, {ORDERS: 12})
    assert before.moved_to(dict(before), {}) is before
    assert before.moved_to(dict(before), {ORDERS: 15, CLICKS: 3}) is before
    moved = before.moved_to({ORDERS: Position.after(20), CLICKS: Position.after(7)}, {ORDERS: 15, CLICKS: 3})
    assert moved.lasts == {CLICKS: 3}, "of a shard that stays where it is, no range ends here"


OLD = '{"sources":{"orders":"arn:aws:kinesis:eu-west-1:123456789012:stream/dev-orders/consumer/lake:1"},"streams":{"orders":{"shardId-000000000000":"AFTER:20"}},"version":1}'
"""An offset as the version wrote it that knew no last records."""


def test_offsets_of_earlier_versions_keep_their_text() -> None:
    data = json.loads(OLD)
    offset = Offset.from_dict(data)
    assert Offset({ORDERS: TRIM_HORIZON}).ranges_to(offset) == [ShardRange(ORDERS, TRIM_HORIZON, Position.after(20))]
    assert json.dumps(offset.to_dict(data["sources"]), separators=(",", ":")) == OLD


def test_an_earlier_version_reads_offsets_with_more_keys() -> None:
    """It looked at `version`, `streams` and `sources`, and refused any version but 1."""

    class Document(msgspec.Struct):
        version: int
        streams: dict[str, dict[str, str]]
        sources: dict[str, str] = {}

    offset = Offset({ORDERS: Position.after(50)}, {ORDERS: 42}, Mark("7c1f", 3))
    read = msgspec.json.decode(offset.to_json(), type=Document)
    assert (read.version, read.streams) == (1, {"orders": {"shardId-000000000000": "AFTER:50"}})


@pytest.mark.parametrize("text", ["-1", "x", "9" * 201])
def test_a_malformed_last_record_is_refused(text: str) -> None:
    document = {"version": 1, "streams": {"o": {"s": "AFTER:12"}}, "lasts": {"o": {"s": text}}}
    with pytest.raises(ValueError, match="not a kinesis-efo offset: its last record of shard o:s is"):
        Offset.from_json(json.dumps(document))
    with pytest.raises(
        ValueError, match="not a kinesis-efo offset: its last record of shard o:t is '1', at position None"
    ):
        Offset.from_json(json.dumps(document | {"lasts": {"o": {"t": "1"}}}))


def test_last_records_do_not_double_an_offsets_size() -> None:
    number = 49590338271490256608559692538361571095921575989136588898
    keys = [ShardKey("orders", f"shardId-{index:012d}") for index in range(1000)]
    for behind in (0, 1 << 72):  # the server's positions are numbers of records, or lie a digit behind them
        plain = Offset({key: Position.after(number + behind) for key in keys})
        assert len(Offset(dict(plain), dict.fromkeys(keys, number)).to_json()) < 1.6 * len(plain.to_json())


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
