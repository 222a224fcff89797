"""Cutting a micro-batch: limits, fairness, and that a query never stops."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.decisions.event_index import Portion
from kinesis_efo.decisions.planning import plan
from kinesis_efo.fetcher.budget import Budget
from kinesis_efo.fetcher.buffer import ShardBuffer
from kinesis_efo.positions import Position, ShardKey
from tests.support.fetched import EVENT_OVERHEAD, SHARD_END, TRIM_HORIZON, after, buffer, event, fill, idle, key

SIZE = EVENT_OVERHEAD + 100
NO_LIMIT = 1 << 60


def planned(*buffers: ShardBuffer, max_bytes: int = NO_LIMIT, max_records: int = NO_LIMIT) -> list[Portion]:
    by_key = {b.key: b for b in buffers}
    result = plan(by_key, {b.key: b.start for b in buffers}, max_bytes, max_records)
    return [result[b.key] for b in buffers]


def test_nothing_to_plan() -> None:
    assert plan({}, {}, 1, 1) == {}


def test_without_limits_everything_goes() -> None:
    one, two = buffer(number=0), buffer(number=1)
    fill(one, event(10), event(20))
    assert [portion.through for portion in planned(one, two)] == [after(20), TRIM_HORIZON]


def test_unused_share_goes_to_the_longest_waiting_shard() -> None:
    late, early, quiet = buffer(number=0), buffer(number=1), buffer(number=2)
    fill(late, *(event(end) for end in range(10, 110, 10)), at=2.0)
    fill(early, *(event(end) for end in range(10, 110, 10)), at=1.0)
    assert [portion.records for portion in planned(late, early, quiet, max_records=9)] == [3, 6, 0]


def test_longest_waiting_shard_gets_an_event_beyond_the_limit() -> None:
    late, early = buffer(number=0), buffer(number=1)
    fill(late, event(10, 5), at=2.0)
    fill(early, idle(5), event(10, 5), event(20, 5), at=1.0)
    assert [portion.records for portion in planned(late, early, max_records=1, max_bytes=1)] == [0, 5]


def test_idle_shards_advance_when_a_busy_one_exhausts_limits() -> None:
    busy, quiet = buffer(number=0), [buffer(number=n) for n in range(1, 64)]
    fill(busy, *(event(end) for end in range(10, 1000, 10)))
    for b in quiet:
        fill(b, idle(500))
    assert [portion.through for portion in planned(busy, *quiet, max_bytes=2 * SIZE)[1:]] == [after(500)] * 63


def test_end_of_a_shard_needs_no_room() -> None:
    b = buffer()
    fill(b, event(None, records=0, children=["c"]))
    assert planned(b, max_bytes=1, max_records=1)[0].through == SHARD_END


events = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3000)), max_size=12)


# Shows 78.
@given(
    shards=st.lists(events, min_size=1, max_size=6), max_bytes=st.integers(1, 20_000), max_records=st.integers(1, 30)
)
def test_micro_batches_cover_each_event_once_within_the_limits(
    shards: list[list[tuple[int, int]]], max_bytes: int, max_records: int
) -> None:
    budget = Budget(1 << 40)
    buffers: dict[ShardKey, ShardBuffer] = {}
    for number, sizes in enumerate(shards):
        buffers[key(number)] = b = buffer(budget=budget, number=number)
        for index, (records, size) in enumerate(sizes):
            fill(b, event(10 * (index + 1), records, size), at=float(index))
    positions: dict[ShardKey, Position] = dict.fromkeys(buffers, TRIM_HORIZON)
    seen: dict[ShardKey, list[bytes]] = {shard: [] for shard in buffers}
    total = sum(records for sizes in shards for records, _ in sizes)
    while total:
        portions = plan(buffers, positions, max_bytes, max_records)
        oldest = min(since for shard in buffers if (since := buffers[shard].news_since(positions[shard])) is not None)
        took = sum(portion.records for portion in portions.values())
        assert took > 0, "a query must never stop"
        within = took <= max_records and sum(portion.bytes for portion in portions.values()) <= max_bytes
        # The one that is forced in may exceed the limits by its first event, and then nothing else comes along.
        alone = [shard for shard, portion in portions.items() if portion.records]
        assert within or (len(alone) == 1 and buffers[alone[0]].news_since(positions[alone[0]]) == oldest)
        for shard, portion in portions.items():
            with buffers[shard].reading(positions[shard], portion.through) as cursor:
                while not cursor.done:
                    seen[shard] += cursor.read(1000)
            positions[shard] = portion.through
        total -= took
    for number, sizes in enumerate(shards):
        ends = accumulate([10] * len(sizes))
        expected = [
            event(end, records, size).payload for end, (records, size) in zip(ends, sizes, strict=True) if records
        ]
        assert seen[key(number)] == expected


def test_only_the_forced_event_exceeds_the_limits() -> None:
    late, early = buffer(number=0), buffer(number=1)
    fill(late, event(10, 2), at=2.0)
    fill(early, event(10, 5), at=1.0)
    assert [portion.records for portion in planned(late, early, max_records=4)] == [0, 5]
