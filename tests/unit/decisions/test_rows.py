"""What is kept of a shard, who catches up, and where its subscription stands: for any queries and rows, and as time passes."""

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kinesis_efo.decisions.event_index import EventIndex
from kinesis_efo.decisions.rows import MOVE_SECONDS, BufferView, Decision, Demand, decide
from kinesis_efo.positions import Position, rank


def at(number: int) -> Position:
    """The position after a record."""
    return Position.after(number)


def events(low: int, end: int) -> EventIndex:
    """A row's events: one for each number."""
    index = EventIndex(at(low))
    for number in range(low + 1, end + 1):
        index.append(number, 100, 1, 0.0, last=number)
    return index


numbers = st.integers(1, 40)
ranges = st.tuples(numbers, numbers).map(sorted)
asked = st.tuples(numbers, numbers, numbers).map(sorted)
seconds = st.sampled_from([0.0, 0.5, 3.0, 6.0, 100.0])
views = st.builds(
    lambda ends, *more: BufferView(events(*ends), *more), ranges, st.none() | seconds, seconds, seconds, st.booleans()
)
# A task of an unfinished micro-batch reads from no position before what its query has finished.
demands = ranges.map(lambda ends: Demand(at(ends[0]), at(ends[1]))) | asked.map(
    lambda ends: Demand(at(ends[0]), at(ends[2]), at(ends[1]))
)
queries = st.dictionaries(st.sampled_from("abc"), demands, min_size=1)


@example({"a": Demand(at(3), at(5))}, BufferView(events(20, 30), 0.0, 0.0, 100.0), {}, False, False)
@given(queries, st.none() | views, st.dictionaries(st.sampled_from("abc"), views), st.booleans(), st.booleans())
def test_each_decision_serves_and_retains_for_all_queries(
    who: dict[str, Demand], shared: BufferView | None, separate: dict[str, BufferView], hold: bool, may_poll: bool
) -> None:
    found = decide(who, shared, separate, hold=hold, may_poll=may_poll)
    after = shared if found.restart_at is None else BufferView(EventIndex(found.restart_at), None, 0.0, 0.0)
    assert after is not None
    assert all(rank(found.retain_from) <= rank(kept) and after.has(kept) for kept in found.retained.values())
    kept = BufferView(*after[:-1], retained_from=found.retain_from)
    for name, need in who.items():
        if may_poll:
            assert kept.is_within(need) or name in found.separate
            assert need.requested is None or kept.has(need.requested) or name in found.separate
        if shared is not None and "back" in found.rules and need.requested and not shared.has(need.requested):
            assert after.has(need.requested), "a task waits there"
        if after.has(need.lowest) and "full" not in found.rules:
            assert rank(found.retain_from) <= rank(need.lowest), "a task of it may read there"
    if shared is not None and found.restart_at is not None:
        assert shared.age >= MOVE_SECONDS
        back = rank(found.restart_at) < rank(shared.events.start)
        assert not (may_poll and back) or not all(shared.is_within(need) for need in who.values())
    assert may_poll or not found.separate
    assert not (hold and {"full", "forward"} & {*found.rules})


@pytest.mark.parametrize(
    ("buffer", "age", "task", "restart_at"),
    [
        (None, 0.0, None, 10),
        ((10, 20), 6.0, None, None),
        ((10, 30), 6.0, None, 3),
        ((10, 20), 60.0, None, 3),
        ((15, 20), 6.0, 12, 12),
    ],
)
def test_planned_records_come_before_those_of_a_query_behind(
    buffer: tuple[int, int] | None, age: float, task: int | None, restart_at: int | None
) -> None:
    busy = Demand(at(10), at(30), None if task is None else at(task))
    shared = None if buffer is None else BufferView(events(*buffer), 0.0, 0.0, age)
    found = decide({"behind": Demand(at(3), at(3)), "busy": busy}, shared, {}, hold=False, may_poll=False)
    assert found.restart_at == (None if restart_at is None else at(restart_at))


# Once a stall: two slow queries needed the same first event, so that a full buffer never dropped it for the third query.
def test_full_buffer_drops_an_event_that_two_slow_queries_need() -> None:
    buffer = EventIndex(at(10))
    buffer.append(20, 100, 2, 0.0, last=20)
    buffer.append(30, 100, 1, 0.0, last=30)
    places = {"slow": at(10), "slower": at(12), "fast": at(30)}
    who = {name: Demand(place, place) for name, place in places.items()}
    found = decide(who, BufferView(buffer, 0.0, 3.0, 100.0, waits=True), {}, hold=False, may_poll=True)
    assert (found.rules, found.retain_from, found.separate.keys()) == (("full",), at(30), {"slow", "slower"})


@dataclass
class Query:
    """A query that plans so many records, and needs so many seconds for them."""

    name: str
    lowest: int
    most: int
    seconds: int
    reach: int = 0
    busy: int = 0

    def __post_init__(self) -> None:
        self.reach = self.lowest


@dataclass
class Row:
    """A row of the simulated table. It gets so many events a second."""

    start: int
    speed: int
    moved_at: int
    low: int = 0
    end: int = 0

    def __post_init__(self) -> None:
        self.low = self.end = self.start

    def view(self, now: int, tip: int, full: bool = False) -> BufferView:
        """The row, for `decide`: a record arrives each second."""
        return BufferView(events(self.low, self.end), float(tip - self.end), 3.0 * full, now - self.moved_at, full)


@dataclass
class Shard:
    """One shard with one record a second, and the queries that read it."""

    queries: list[Query]
    tip: int
    may_poll: bool
    room: int
    shared: Row | None = None
    separate: dict[str, Row] = field(default_factory=dict)
    moves: int = 0
    now: int = 0

    def step(self) -> None:
        """One second."""
        self.now += 1
        self.tip += 1
        for row in (self.shared, *self.separate.values()):
            if row is not None:
                row.end = min(self.tip, row.end + row.speed, row.low + self.room)
        for query in self.queries:
            query.busy -= 1
            if query.reach > query.lowest and query.busy <= 0:
                query.lowest = query.reach
            if query.reach == query.lowest:
                rows = [row for row in (self.shared, self.separate.get(query.name)) if row is not None]
                ends = [row.end for row in rows if row.low <= query.lowest < row.end]
                query.reach = min(max(ends, default=query.lowest), query.lowest + query.most)
                query.busy = query.seconds
        self.settle()

    def settle(self) -> None:
        """Decide, and do it."""
        full = self.shared is not None and self.shared.end - self.shared.low >= self.room
        found: Decision = decide(
            {each.name: Demand(at(each.lowest), at(each.reach)) for each in self.queries},
            None if self.shared is None else self.shared.view(self.now, self.tip, full),
            {name: row.view(self.now, self.tip) for name, row in self.separate.items()},
            hold=False,
            may_poll=self.may_poll,
        )
        if found.restart_at is not None:
            self.moves += self.shared is not None
            self.shared = Row(found.restart_at.value, 8, self.now)
        assert self.shared is not None
        self.shared.low = max(self.shared.low, min(found.retain_from.value, self.shared.end))
        rows = {}
        for name, start in found.separate.items():
            row = self.separate.get(name)
            if row is None or not row.low <= start.value <= row.end:
                row = Row(start.value, 4, self.now)
            row.low = max(row.low, min(row.end, next(each.lowest for each in self.queries if each.name == name)))
            rows[name] = row
        self.separate = rows


several = st.lists(
    st.tuples(st.integers(1, 300), st.sampled_from([3, 20, 100]), st.sampled_from([1, 1, 2, 5])), min_size=1, max_size=3
)


@pytest.mark.parametrize("may_poll", [True, False])
@given(several, st.sampled_from([30, 400]))
def test_queries_of_any_speed_meet_with_few_moves(
    may_poll: bool, places: list[tuple[int, int, int]], room: int
) -> None:
    found = [Query("abc"[number], *each) for number, each in enumerate(places)]
    shard = Shard(found, 300, may_poll, room)
    for _ in range(600):
        shard.step()
    slow = [each for each in found if each.most < 2 * each.seconds]
    assert shard.moves <= 4 * len(found)
    for each in found:
        if not slow:
            assert shard.tip - each.lowest <= 60, "it is at the tip"
    if not slow:
        assert not shard.separate, "all share the subscription"
