"""Shards stay together in arrival time: no micro-batch takes one too far ahead, and none stops the query."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.alignment import CLOCK_SECONDS, SILENT_SECONDS, Alignment
from kinesis_efo.decisions.event_index import Portion
from kinesis_efo.decisions.planning import plan
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.events import Event, EventHead
from tests.support.fetched import Budget, after, event, fill, key

NO_LIMIT = 1 << 60
SKEW = 30.0
STEP = 3_000


def timed(first: int, *seconds: float, step: int = 1) -> Event:
    """An event whose records have the numbers from `first` on, times `step`, and arrived at these times."""
    records = [
        {"SequenceNumber": str(step * (first + number)), "ApproximateArrivalTimestamp": each, "Data": "eA=="}
        for number, each in enumerate(seconds)
    ]
    end = step * (first + len(seconds)) - 1
    return Event(json.dumps({"Records": records}).encode(), EventHead(end, 1000, len(seconds)))


def shard(number: int, *events: Event) -> ShardBuffer:
    made = ShardBuffer(key(number), TRIM_HORIZON, Budget(1 << 30), lambda: None, STEP)
    fill(made, *events)
    return made


class Query:
    """The shards of a query, and how far it has come."""

    def __init__(self, *buffers: ShardBuffer, unread: Sequence[int] = ()) -> None:
        self.buffers = {each.key: each for each in buffers}
        self.until: dict[ShardKey, float] = {}
        self.positions: dict[ShardKey, Position] = dict.fromkeys(self.buffers, TRIM_HORIZON)
        self.positions |= {key(number): TRIM_HORIZON for number in unread}
        self.alignment = Alignment(SKEW, lambda shard, _: self.until.get(shard))
        self.alignment.follow(self.positions, [], 0.0)

    def plan(self, max_bytes: int = NO_LIMIT, max_records: int = NO_LIMIT, now: float = 0.0) -> dict[ShardKey, Portion]:
        waiting = {}
        for each, buffer in self.buffers.items():
            if buffer.news_since(self.positions[each]) is not None:
                waiting[each] = buffer
            elif not self.positions[each].is_end:
                self.alignment.record_position(each, buffer, self.positions[each], now)

        planning = partial(plan, waiting, self.positions, max_bytes, max_records)
        return self.alignment.plan_portions(waiting, self.positions, planning, now)

    def take(self, portions: Mapping[ShardKey, Portion]) -> None:
        moved = {each: portion.through for each, portion in portions.items()}
        self.positions |= moved
        self.alignment.follow(moved, [], 0.0)


def test_a_short_backlog_waits_for_a_long_one() -> None:
    # The long one has only its first minute here; the rest is still to come.
    long = shard(0, *(timed(100 * minute, *range(60 * minute, 60 * minute + 60)) for minute in range(1)))
    short = shard(1, timed(1, *range(0, 1200, 10)))
    query = Query(long, short)
    portions = query.plan()
    assert portions[key(0)].through == after(59)
    # In the middle of its one event: up to 59 + 30 s.
    assert portions[key(1)].records == 9 and portions[key(1)].through == after(9)
    query.take(portions)
    fill(long, timed(100, *range(60, 120)))
    portions = query.plan()
    assert portions[key(0)].through == after(159)
    assert portions[key(1)].through == after(15)


def test_share_of_the_shard_ahead_goes_to_the_slowest() -> None:
    slow = shard(0, *(timed(number, number) for number in range(1, 101)))
    ahead = shard(1, *(timed(number, 1000 + number) for number in range(1, 101)))
    portions = Query(slow, ahead).plan(max_records=50)
    assert (portions[key(0)].records, portions[key(1)].records) == (50, 0)


def test_silent_shard_holds_the_others_for_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    query = Query(shard(0, timed(1, 0.0, 1.0)), unread=[1])
    assert query.plan()[key(0)] == Portion(TRIM_HORIZON, 0, 0)
    assert caplog.text == ""
    assert query.plan(now=11)[key(0)] == Portion(TRIM_HORIZON, 0, 0)
    assert "for 11 s, 1 shards have waited" in caplog.text
    assert "orders:shardId-000000000001, which has had no event yet" in caplog.text
    assert query.plan(now=SILENT_SECONDS)[key(0)].records == 0
    assert query.plan(now=SILENT_SECONDS + 1)[key(0)].records == 2
    assert "shard orders:shardId-000000000001 and 0 others have had no event" in caplog.text


def test_idle_shard_holds_others_at_its_own_time() -> None:
    query = Query(shard(0, timed(1, *range(0, 1000, 10))), unread=[1])
    idle = shard(1, Event(b"", EventHead(5, 600_000, 0)))
    query.until[key(1)] = 400.0 + CLOCK_SECONDS
    query.alignment.record_position(key(1), idle, TRIM_HORIZON, 0.0)
    portions = query.plan()
    assert portions[key(0)].through == after(44), "430 s: 400 s that the idle one has come to, and 30"
    query.until[key(1)] = 2000.0
    query.alignment.record_position(key(1), idle, after(5), 1.0)
    assert query.plan()[key(0)].records == 100


def test_start_at_a_time_waits_for_no_idle_shard() -> None:
    query = Query(shard(0, timed(1, 1000.0, 1025.0, 1040.0)))
    query.alignment.follow({key(1): Position.at_timestamp(1_000_000)}, [], 0.0)
    assert query.plan()[key(0)].records == 2


def test_ended_shard_holds_others_at_its_childrens_begin() -> None:
    parent = shard(0, timed(1, 10.0, 20.0), event(None, records=0, children=["c"]))
    other = shard(1, timed(1, 10.0, 45.0, 100.0))
    query = Query(parent, other)
    portions = query.plan()
    assert portions[key(0)].through == SHARD_END
    assert portions[key(1)].through == after(2)
    query.take({key(0): portions[key(0)]})
    assert query.plan()[key(1)].records == 3, "it does not hold anybody once the query is behind it"


def test_shard_ends_after_its_last_record_was_cut_off() -> None:
    ended = shard(0, timed(1, 10.0, 11.0, 12.0, step=10), event(None, records=0, children=["c"]))
    query = Query(ended, shard(1, timed(1, 100.0)))
    query.take({key(0): Portion(after(30), 100, 3)})
    assert query.plan(max_bytes=1, max_records=1)[key(0)].through == SHARD_END


def test_records_without_arrival_times_stop_nothing() -> None:
    query = Query(shard(0, event(10, 3)), shard(1, timed(1, 5.0)))
    query.until[key(0)] = 1000.0
    portions = query.plan()
    assert portions[key(0)].records == 3 and portions[key(1)].records == 1


def test_a_record_out_of_order_stops_nothing() -> None:
    query = Query(shard(0, timed(1, 1000.0), timed(2, 10.0), timed(3, 1001.0)), shard(1, timed(1, 1000.0)))
    for _ in range(3):
        query.take(query.plan(max_records=1))
        query.take(query.plan(max_records=1))
    assert query.positions[key(0)] == after(3) and query.positions[key(1)] == after(1)


arrivals = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), max_size=8)


@given(
    shards=st.lists(arrivals, min_size=1, max_size=5),
    behind=st.lists(st.booleans(), min_size=5, max_size=5),
    max_bytes=st.integers(1, 5_000),
    max_records=st.integers(1, 12),
)
def test_skew_stays_bounded_and_queries_progress(
    shards: list[list[list[int]]], behind: list[bool], max_bytes: int, max_records: int
) -> None:
    buffers = []
    times: dict[ShardKey, list[float]] = {}
    for number, events in enumerate(shards):
        clock, first = 0.0, 1
        made = []
        times[key(number)] = []
        for gaps in events:
            seconds = []
            for gap in gaps:
                clock += gap
                seconds.append(clock)
            # The event's position lies behind its last record, at which a micro-batch may end.
            made.append(timed(first, *seconds, step=10))
            times[key(number)] += seconds
            first += len(gaps)
        if not behind[number]:
            made.append(event(None, records=0, children=["c"]))
        buffers.append(shard(number, *made))
    query = Query(*buffers)
    # The last event of some says that nothing is behind it, as of a time in the far future; the others may have more.
    for number, buffer in enumerate(buffers):
        if not behind[number]:
            query.until[buffer.key] = 1e9
        query.alignment.record_position(buffer.key, buffer, TRIM_HORIZON, 0.0)
    done: dict[ShardKey, int] = dict.fromkeys(times, 0)
    unfinished = {each for number, each in enumerate(times) if behind[number]}
    while True:
        portions = query.plan(max_bytes, max_records)
        alone = sum(portion.records > 0 for portion in portions.values()) <= 1
        assert alone or sum(portion.records for portion in portions.values()) <= max_records
        assert alone or sum(portion.bytes for portion in portions.values()) <= max_bytes
        query.take(portions)
        took = False
        for each, portion in portions.items():
            ends = portion.through.is_end
            number = len(times[each]) if ends else (portion.through.sequence_number or 0) // 10
            took |= ends or number > done[each]
            done[each] = max(done[each], number)
        newest = max((times[each][count - 1] for each, count in done.items() if count), default=-inf)
        rest = {each: times[each][count:] for each, count in done.items()}
        slowest = min((left[0] for left in rest.values() if left), default=inf)
        assert newest <= slowest + SKEW
        # One whose buffer is read, and which is behind, may have records as old as its last one.
        open_ends = [times[each][-1] if times[each] else -inf for each in unfinished if not rest[each]]
        assert newest <= min(open_ends, default=inf) + SKEW or not took
        if not took:
            break
    for each, left in rest.items():
        held = bool(unfinished)
        assert held or (not left and query.positions[each].is_end), f"{each} stopped, and nothing holds it back"
