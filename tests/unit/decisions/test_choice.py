"""Who reads a shard how: one decision for planning and tasks, and no two queries take a subscription from each other."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.choice import Choice, choose
from kinesis_efo.positions import TRIM_HORIZON, Position


class Buffer:
    """What a buffer has: everything behind its start, up to its end."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, Position.after(end)

    def covers(self, position: Position) -> bool:
        return position.value >= self.start

    def ends_before(self, position: Position) -> bool:
        return position.value > self.end.value


BUFFER: Any = Buffer(10, 20)
BEHIND, WITHIN, FRONT = Position.after(5), Position.after(15), Position.after(30)


def chosen(position: Position, buffer: Any = BUFFER, **how: bool) -> Choice:
    defaults = {"others": True, "apart": False, "may_read_apart": True, "has_waited": False, "quiet": False}
    return choose(position, buffer, **{**defaults, **how})


def test_a_query_shares_the_buffer_that_covers_it() -> None:
    assert chosen(WITHIN) is chosen(WITHIN, apart=True) is chosen(WITHIN, others=False) is Choice.SHARED
    assert chosen(FRONT) is Choice.SHARED, "the buffer will come there"


def test_nobody_waits_for_an_event_of_a_quiet_shard() -> None:
    unknown: Any = SimpleNamespace(covers=lambda _: None, ends_before=lambda _: False)
    assert chosen(WITHIN, unknown) is Choice.SHARED, "its first event shows whether it begins before"
    assert chosen(WITHIN, unknown, quiet=True) is Choice.APART
    assert chosen(WITHIN, unknown, quiet=True, others=False) is Choice.BEGIN
    assert chosen(WITHIN, unknown, quiet=True, may_read_apart=False) is Choice.SHARED


def test_a_query_that_is_behind_others_catches_up() -> None:
    assert chosen(BEHIND) is chosen(BEHIND, apart=True) is Choice.APART
    assert chosen(BEHIND, may_read_apart=False) is Choice.BACK


def test_a_buffer_that_no_other_query_uses_begins_where_the_query_is() -> None:
    assert chosen(BEHIND, others=False) is chosen(TRIM_HORIZON, None) is chosen(FRONT, None) is Choice.BEGIN


def test_a_query_that_has_waited_in_front_gets_the_subscription() -> None:
    assert chosen(FRONT, has_waited=True) is Choice.FORWARD
    assert chosen(FRONT, apart=True) is Choice.APART, "it would take the subscription to and fro"


def test_the_subscription_never_goes_back_for_a_query_that_may_catch_up() -> None:
    for position, apart, waited in product((BEHIND, WITHIN, FRONT), (False, True), (False, True)):
        assert chosen(position, apart=apart, has_waited=waited) not in (Choice.BACK, Choice.BEGIN)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.booleans()), max_size=60))
def test_no_two_queries_take_a_shard_from_each_other(moves: list[tuple[int, int, bool]]) -> None:
    """Each move of the subscription takes it further, as long as other queries use the buffer and may catch up."""
    buffer: Any = Buffer(0, 0)
    at = [0, 0, 0]
    catching_up = [False, False, False]
    ends = []
    for query, records, waited in moves:
        position = Position.after(at[query])
        in_front = position.value > buffer.end.value
        choice = choose(
            position,
            buffer,
            others=True,
            apart=catching_up[query],
            may_read_apart=True,
            has_waited=waited and in_front,
            quiet=False,
        )
        catching_up[query] = choice is Choice.APART
        assert choice in (Choice.SHARED, Choice.FORWARD, Choice.APART)
        if choice is Choice.FORWARD:
            assert position.value > buffer.end.value
            buffer = Buffer(at[query], at[query])
        if choice is not Choice.APART:
            buffer.end = Position.after(max(buffer.end.value, at[query]) + records)
            at[query] = max(at[query], buffer.end.value if choice is Choice.SHARED and not in_front else at[query])
        else:
            at[query] += records
        ends.append(buffer.end.value)
    assert ends == sorted(ends), "it never goes back"
