"""Where a query stands, and how far the rows of the lease table may follow."""

from collections.abc import Iterable
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.progress import Progress, lease_positions
from kinesis_efo.errors import FetcherError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Mark, Offset, Position, ShardKey, lowest

PARENT, CHILD, GRANDCHILD = (ShardKey("orders", name) for name in ("a", "b", "c"))


# -- progress

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plan", "finish", "begin"]), st.sampled_from(["ab", "cd"]), st.none() | st.integers(0, 6)
    ),
    max_size=30,
)


def end(number: int | None, checkpoint: str = "ab") -> Offset:
    """The end of a micro-batch; its positions say nothing about the order, as if parents had left."""
    return Offset(
        {ShardKey("orders", str(number)): TRIM_HORIZON}, mark=None if number is None else Mark(checkpoint, number)
    )


def play(steps: Iterable[tuple[str, str, int | None]]) -> Iterable[Progress]:
    """The progress after each step; every step is made twice, and the second time changes nothing. A late begin changes nothing either."""
    progress = Progress()
    for what, checkpoint, number in steps:
        for again in (False, True):
            before = progress.finished, progress.planned
            match what:
                case "plan":
                    progress.plan(end(number, checkpoint))
                case "begin":
                    begins = end(number, checkpoint)
                    late = progress.finished is not None and is_before(begins, progress.finished)
                    with pytest.raises(FetcherError) if late else nullcontext():
                        finishes = progress.begin(begins)
                        assert progress.finished is begins, "what is polled next"
                        assert not (finishes and again)
                    assert not late or (progress.finished, progress.planned) == before
                case "finish" if number is not None:
                    moved = progress.finish(Mark(checkpoint, number))
                    assert moved == (progress.finished is not before[0])
                    assert not (moved and again)
            assert not again or (progress.finished, progress.planned) == before
            yield progress


def is_before(offset: Offset, other: Offset) -> bool:
    """Whether two offsets are of one checkpoint, and which is earlier."""
    mine, its = offset.mark, other.mark
    return mine is not None and its is not None and mine.checkpoint == its.checkpoint and mine.moved < its.moved


@given(STEPS)
def test_progress_only_moves_forward_within_its_checkpoint(steps: list[tuple[str, str, int | None]]) -> None:
    last: Offset | None = None
    for progress in play(steps):
        assert last is None or (progress.finished is not None and not is_before(progress.finished, last))
        last = progress.finished


@given(STEPS)
def test_at_most_two_ascending_ends_are_planned(steps: list[tuple[str, str, int | None]]) -> None:
    for progress in play(steps):
        assert len(progress.planned) <= 2
        known = [each for each in (progress.finished, *progress.planned) if each is not None]
        assert not any(is_before(later, one) for number, one in enumerate(known) for later in known[number + 1 :])


def test_end_that_another_checkpoint_has_planned_finishes() -> None:
    """An old checkpoint does not say where micro-batch 0 begins, so the present planner has chosen its begin."""
    progress = Progress()
    progress.begin(end(0, "ab"), end(1, "cd"))
    assert progress.begin(end(1, "cd"))
    assert progress.planned == []


def test_begin_elsewhere_finishes_unplanned_positions() -> None:
    progress = Progress()
    progress.begin(end(1))
    assert progress.begin(end(2))
    assert not progress.begin(end(2))


def test_finished_micro_batches_before_the_last_one_count() -> None:
    progress = Progress()
    progress.begin(end(3))
    finished = [progress.has_finished(Mark(*mark)) for mark in (("ab", 2), ("ab", 3), ("ab", 4), ("cd", 2))]
    assert finished == [True, True, False, False]


def test_late_report_does_not_take_progress_back() -> None:
    """Spark's listeners have a thread of their own, which may be several micro-batches late."""
    progress = Progress()
    progress.begin(end(5))
    for number in (6, 7):
        progress.plan(end(number))
    assert progress.finish(Mark("ab", 7))
    assert not progress.finish(Mark("ab", 6))
    assert progress.finished == end(7)
    assert progress.planned == []


def test_dropped_stream_leaves_the_finished_offset() -> None:
    progress = Progress()
    both = Offset({ShardKey(name, "a"): TRIM_HORIZON for name in ("orders", "clicks")}, mark=Mark("ab", 5))
    progress.begin(both)
    progress.begin(both.without(["clicks"]))
    assert progress.finished == both.without(["clicks"])


# -- the rows of the lease table


class Table:
    """The rows of some shards, written as queries come further."""

    def __init__(self, **rows: int) -> None:
        self.rows = {ShardKey("orders", shard): Position.after(number) for shard, number in rows.items()}
        self.parents = {CHILD: [PARENT]}
        self.queries: dict[str, Offset] = {}

    def begin(self, *queries: str, **positions: int | Position) -> None:
        self.queries |= dict.fromkeys(queries, offset(positions))

    def commit(self, query: str, **positions: int | Position) -> dict[ShardKey, Position]:
        """The rows once a query has committed."""
        self.queries[query] = offset(positions)
        return self.move(self.queries[query])

    def leave(self, query: str) -> dict[ShardKey, Position]:
        """The rows once a query has left."""
        return self.move(self.queries.pop(query, ()))

    def move(self, shards: Iterable[ShardKey]) -> dict[ShardKey, Position]:
        queries = self.queries.values()
        self.rows |= lease_positions(shards, queries, self.rows.get, lambda key: self.parents.get(key, []))
        return self.rows


def offset(positions: dict[str, int | Position]) -> Offset:
    found = {}
    for shard, at in positions.items():
        found[ShardKey("orders", shard)] = Position.after(at) if isinstance(at, int) else at
    return Offset(found)


def test_a_row_is_where_the_slowest_query_is() -> None:
    table = Table()
    table.begin("one", "two", a=10, c=10)
    assert table.commit("one", a=30, c=40) == offset({"a": 10, "c": 10})
    assert table.commit("two", a=20, c=10) == offset({"a": 20, "c": 10})
    assert table.commit("two", a=50, c=10) == offset({"a": 30, "c": 10})
    assert table.leave("two") == offset({"a": 30, "c": 40})
    assert table.commit("one", a=60, c=40) == offset({"a": 60, "c": 40})


def test_query_behind_a_row_holds_it_after_reaching_it() -> None:
    table = Table(a=100)
    table.begin("one", a=100)
    table.begin("two", a=10)
    assert table.commit("one", a=120) == offset({"a": 120})
    assert table.commit("two", a=110) == offset({"a": 120})
    table.commit("two", a=120)
    assert table.commit("one", a=150) == offset({"a": 120})


def test_child_does_not_begin_while_its_parent_is_read() -> None:
    table = Table()
    table.begin("one", "two", a=10)
    table.commit("one", a=SHARD_END)
    assert table.commit("one", b=20) == offset({"a": 10, "b": TRIM_HORIZON})
    table.commit("two", a=SHARD_END)
    assert table.commit("two", b=5) == offset({"a": SHARD_END, "b": 5})


def test_child_waits_although_its_grandparent_is_forgotten() -> None:
    table = Table()
    table.begin("one", "two", a=10)
    for query in ("one", "two"):
        table.commit(query, a=SHARD_END)
        table.commit(query, b=20)
    table.parents = {GRANDCHILD: [CHILD]}
    table.commit("one", b=SHARD_END)
    table.commit("one", c=30)
    assert table.rows[GRANDCHILD] == TRIM_HORIZON


def test_query_far_behind_in_a_parent_holds_no_child() -> None:
    table = Table(a=100)
    table.begin("one", a=100)
    table.begin("two", a=10)
    table.commit("one", a=SHARD_END)
    table.commit("one", b=20)
    assert table.rows[CHILD] == Position.after(20)


def test_a_query_that_reads_other_shards_holds_none_up() -> None:
    table = Table()
    table.begin("one", a=10)
    table.begin("two", c=10)
    table.commit("one", a=20)
    table.commit("two", c=30)
    assert table.leave("one") == offset({"a": 20, "c": 30})


def test_row_waits_for_all_queries_that_begin_at_times() -> None:
    table = Table()
    table.begin("one", a=Position.at_timestamp(1_000))
    table.begin("two", a=Position.at_timestamp(2_000))
    assert table.commit("two", a=Position.at_timestamp(2_000)) == offset({"a": Position.at_timestamp(1_000)})
    assert table.commit("one", a=30) == offset({"a": Position.at_timestamp(2_000)})
    assert table.commit("two", a=20) == offset({"a": 20})


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("ab"), st.integers(0, 12)), max_size=30))
def test_rows_only_move_forward_and_wait_for_counted_queries(steps: list[tuple[str, str, int]]) -> None:
    order = [TRIM_HORIZON, *map(Position.at_timestamp, (5, 6, 7)), *map(Position.after, range(8)), SHARD_END]
    table = Table()
    reached: set[tuple[str, str]] = set()
    for query, shard, ahead in steps:
        before = dict(table.rows)
        key = ShardKey("orders", shard)
        at = table.queries.setdefault(query, offset({"a": order[ahead], "b": order[ahead]}))
        further = order[min(order.index(at[key]) + ahead, len(order) - 1)]
        table.queries[query] = Offset({**at, key: further})
        table.move([key])
        for row, position in before.items():
            assert order.index(table.rows[row]) >= order.index(position)
        for name, positions in table.queries.items():
            if order.index(positions[key]) >= order.index(table.rows[key]):
                reached.add((name, shard))
            assert (name, shard) not in reached or order.index(positions[key]) >= order.index(table.rows[key])


def test_a_query_that_has_left_is_not_counted_again() -> None:
    table = Table()
    table.begin("one", "two", a=10)
    table.commit("two", a=20)
    assert table.leave("one") == offset({"a": 20})
    assert table.leave("one") == offset({"a": 20})


def test_position_within_an_aggregate_is_before_its_end() -> None:
    inside, after = Position.inside(12, 3), Position.after(12)
    assert lowest([after, inside]) == lowest([inside, after]) == inside
