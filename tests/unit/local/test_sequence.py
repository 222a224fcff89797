"""Sequence numbers look like the real ones, grow, and can be told apart by stream and shard."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.local.sequence import Numbering, Ticks, parse, salt


@given(st.lists(st.floats(min_value=0, max_value=4e9), min_size=2, max_size=50))
def test_ticks_grow_however_the_clock_jumps(times: list[float]) -> None:
    ticks = Ticks()
    seen = [ticks.next(now) for now in times]
    assert all(later > earlier for earlier, later in itertools.pairwise(seen))


@given(st.integers(1, 10**19 - 2), st.integers(0, 10**8 - 1), st.integers(0, 10**8 - 1))
def test_numbers_have_56_digits_and_order_as_record_then_continuation_then_any_later_record(
    tick: int, shard: int, other: int
) -> None:
    here, there = Numbering(salt("a"), shard), Numbering(salt("a"), other)
    record, continuation, later = here.record(tick), here.continuation(tick), there.record(tick + 1)
    assert [len(number) for number in (record, continuation, later)] == [56, 56, 56]
    assert int(record) < int(continuation) < int(later)


@given(st.integers(1, 10**19 - 1), st.integers(0, 10**8 - 1))
def test_a_number_tells_its_tick_and_its_shard_but_only_to_its_own_stream(tick: int, shard: int) -> None:
    parsed = parse(Numbering(salt("a"), shard).record(tick))
    assert parsed is not None
    assert parsed.tick == tick
    assert parsed.shard_index(salt("a")) == shard
    assert parsed.shard_index(salt("b")) is None


def test_what_is_no_sequence_number_is_not_parsed() -> None:
    assert [parse(text) for text in ("", "-1", "01", "1e5", "12 ", "٣", "9" * 130)] == [None] * 7
    assert parse("0") is not None
    assert parse("9" * 129) is not None
