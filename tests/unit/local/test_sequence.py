"""Sequence numbers look like the real ones, grow, and hold their shard and time."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo_local.sequence import Numbering, Parsed, Ticks, parse

SECOND = 1_000_000_000
ticks = st.integers(SECOND, 2**63 - 2)
indexes = st.integers(0, 2**31 - 1)


@given(st.lists(st.floats(min_value=0, max_value=4e9), min_size=2, max_size=50))
def test_ticks_grow_however_the_clock_jumps(times: list[float]) -> None:
    ticks = Ticks()
    assert all(later > earlier for earlier, later in itertools.pairwise([ticks.next(now) for now in times]))


@given(ticks, indexes, st.integers(0, 2**35))
def test_numbers_are_ordered_and_contain_tick_and_shard(tick: int, index: int, created: int) -> None:
    shard = Numbering(index, created)
    record, continuation, later = shard.record(tick), shard.continuation(tick), shard.record(tick + 1)
    assert [len(number) for number in (record, continuation, later)] == [56, 56, 56]
    assert int(record) < int(continuation) < int(later)
    assert parse(record) == Parsed(tick, index, created, continuation=False)
    assert parse(continuation) == Parsed(tick, index, created, continuation=True)


@given(ticks, indexes, st.integers(1, 10**9))
def test_numbers_grow_from_parents_to_children(tick: int, index: int, age: int) -> None:
    parent, child = Numbering(index, tick // SECOND), Numbering(index + 1, tick // SECOND + 1)
    assert int(parent.continuation(tick)) < int(child.record(tick + age))


def test_numbers_of_other_shards_are_in_no_order() -> None:
    first, second, later = Numbering(0, 7), Numbering(1, 7), Numbering(16, 7)
    assert int(first.record(8 * SECOND)) < int(second.record(7 * SECOND)) > int(later.record(9 * SECOND))


def test_a_number_of_aws_is_understood() -> None:
    # From the Lambda developer guide: a record of shardId-000000000006 that arrived at 1545084650.987.
    number = "49590338271490256608559692538361571095921575989136588898"
    assert parse(number) == Parsed(0x67648A17, index=6, created=1_542_776_258, continuation=False)


def test_other_texts_are_not_parsed() -> None:
    assert [parse(text) for text in ("", "-1", "01", "1e5", "12 ", "٣", "0", "9" * 129, "9" * 130)] == [None] * 9
