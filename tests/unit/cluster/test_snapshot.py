"""What the planner keeps of a shard that another process buffers: all of it from reports."""

from __future__ import annotations

from kinesis_efo.cluster.snapshots import ShardSnapshot
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.work import ShardNews
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position, ShardKey

KEY = ShardKey("orders", "shardId-000000000000")


def entry(through: int | Position, records: int = 1, last: str | None = "") -> BufferedEvent:
    """An event; one with records ends with its last one, unless that is given."""
    position = through if isinstance(through, Position) else Position.after(through)
    record = LastRecord(position.value) if last == "" else None if last is None else LastRecord.parse(last)
    return BufferedEvent.of(position, 100 * records, records, record if records else None, ())


def snapshot(*entries: BufferedEvent, start: Position = TRIM_HORIZON) -> ShardSnapshot:
    made = ShardSnapshot("fetcher-1", start, 1 << 20)
    made.append(entries, 10.0)
    return made


def news(**told: object) -> ShardNews:
    return ShardNews(KEY, **told)  # type: ignore[arg-type]


def test_nothing_is_known_before_something_was_told() -> None:
    made = snapshot()
    assert (made.behind, made.read_until) == (None, None)
    assert made.quiet(50.0) == 0.0
    assert made.commit(TRIM_HORIZON) is None
    status = made.status(KEY, None, 50.0)
    assert (status.key, status.fetched, status.buffered, status.records) == (KEY, "TRIM_HORIZON", 0, 0)
    assert (status.waiting, status.behind, status.fetcher, status.subscription) == (None, None, None, None)


def test_it_has_what_had_arrived_as_long_before_a_report_as_that_tells_and_all_of_a_shard_that_has_ended() -> None:
    made = snapshot(entry(20))
    assert not made.has_all_since(0.0)
    made.note(news(behind=700, unseen=2.7), 10.0)
    assert (made.has_all_since(7.3), made.has_all_since(7.31)) == (True, False)
    made.note(news(behind=700), 11.0)
    assert not made.has_all_since(0.0)
    made.append([entry(SHARD_END, 0)], 12.0)
    assert made.has_all_since(1000.0)


def test_many_commits_keep_events_and_their_last_records_together() -> None:
    made = ShardSnapshot("fetcher-1", TRIM_HORIZON, 1 << 20)
    for number in range(1, 4001):
        made.append([entry(10 * number, last=str(10 * number - 1))], float(number))
        if number > 2:
            at = Position.after(10 * (number - 2))
            assert made.commit(at) == LastRecord(at.value - 1)
    assert made.index.compacted > 0
    assert len(made.index) < 2500
