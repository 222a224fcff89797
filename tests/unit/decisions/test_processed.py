"""How far all queries of a run have come in each shard: what the lease table is told of several of them."""

from __future__ import annotations

from kinesis_efo.decisions.processed import Processed
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Offset, Position, ShardKey, lowest

PARENT, CHILD, GRANDCHILD = (ShardKey("orders", name) for name in ("a", "b", "c"))


class Table:
    """The rows of some shards, written as queries come further."""

    def __init__(self, **rows: int) -> None:
        self.rows = {ShardKey("orders", shard): Position.after(number) for shard, number in rows.items()}
        self.parents = {CHILD: [PARENT]}
        self.processed = Processed(lambda key: self.parents.get(key, []), self.rows.get)
        self._committed: dict[str, Offset] = {}

    def begin(self, query: str, **positions: int | Position) -> None:
        self.processed.join(query)
        self.processed.begin(query, offset(positions))

    def commit(self, query: str, **positions: int | Position) -> None:
        after = offset(positions)
        self.rows |= self.processed.commit(query, after, self._committed.get(query))
        self._committed[query] = after

    def leave(self, query: str) -> None:
        self.rows |= self.processed.leave(query)


def offset(positions: dict[str, int | Position]) -> Offset:
    found = {}
    for shard, at in positions.items():
        found[ShardKey("orders", shard)] = Position.after(at) if isinstance(at, int) else at
    return Offset(found)


def test_a_row_is_where_the_slowest_query_is() -> None:
    table = Table()
    table.begin("one", a=10, c=10)
    table.begin("two", a=10, c=10)
    table.commit("one", a=30, c=40)
    assert table.rows == offset({"a": 10, "c": 10})
    table.commit("two", a=20, c=10)
    assert table.rows == offset({"a": 20, "c": 10})
    table.commit("two", a=50, c=10)
    assert table.rows == offset({"a": 30, "c": 10})
    table.leave("two")
    assert table.rows == offset({"a": 30, "c": 40})
    table.commit("one", a=60, c=40)
    assert table.rows == offset({"a": 60, "c": 40})


def test_a_query_that_begins_behind_a_row_holds_it_up_once_it_has_come_as_far() -> None:
    table = Table(a=100)
    table.begin("one", a=100)
    table.begin("two", a=10)
    table.commit("one", a=120)
    assert table.rows == offset({"a": 120})
    table.commit("two", a=110)
    assert table.rows == offset({"a": 120})
    table.commit("two", a=120)
    table.commit("one", a=150)
    assert table.rows == offset({"a": 120})


def test_a_child_is_not_begun_while_a_query_reads_its_parent() -> None:
    table = Table()
    table.begin("one", a=10)
    table.begin("two", a=10)
    table.commit("one", a=SHARD_END)
    table.commit("one", b=20)
    assert table.rows == offset({"a": 10, "b": TRIM_HORIZON})
    table.commit("two", a=SHARD_END)
    table.commit("two", b=5)
    assert table.rows == offset({"a": SHARD_END, "b": 5})


def test_a_child_is_not_begun_either_once_its_grandparent_is_not_known_any_more() -> None:
    table = Table()
    table.begin("one", a=10)
    table.begin("two", a=10)
    for query in ("one", "two"):
        table.commit(query, a=SHARD_END)
        table.commit(query, b=20)
    table.parents = {GRANDCHILD: [CHILD]}
    table.commit("one", b=SHARD_END)
    table.commit("one", c=30)
    assert table.rows[GRANDCHILD] == TRIM_HORIZON


def test_a_query_that_reads_a_parent_and_is_far_behind_holds_no_child_up() -> None:
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
    table.leave("one")
    assert table.rows == offset({"a": 20, "c": 30})


def test_what_a_query_reads_anew_does_not_take_back_what_it_has_processed() -> None:
    table = Table()
    table.begin("one", a=10)
    table.begin("two", a=10)
    table.commit("one", a=40)
    # A listing has found a shard: the run asks for all of them again, from where the query has planned.
    table.processed.begin("one", offset({"a": 60, "c": 0}))
    table.commit("two", a=50)
    assert table.rows == offset({"a": 40})


def test_a_query_that_has_left_is_not_counted_again() -> None:
    table = Table()
    table.begin("one", a=10)
    table.begin("two", a=10)
    table.commit("two", a=20)
    table.leave("one")
    assert table.rows == offset({"a": 20})
    table.leave("one")
    assert table.rows == offset({"a": 20})


def test_behind_a_record_of_an_aggregate_lies_more_than_behind_all_of_it() -> None:
    inside, after = Position.inside(12, 3), Position.after(12)
    assert lowest([after, inside]) == lowest([inside, after]) == inside
