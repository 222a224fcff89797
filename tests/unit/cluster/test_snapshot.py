"""What the planner keeps of a shard that another process buffers: all of it from reports."""

from __future__ import annotations

import msgspec
import pytest

from kinesis_efo.cluster.snapshots import ShardSnapshot
from kinesis_efo.fetcher.buffer import BufferedEvent
from kinesis_efo.fetcher.status import Subscription
from kinesis_efo.fetcher.work import ShardNews
from kinesis_efo.kinesis.stats import SILENCE_SECONDS
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Position, ShardKey, ShardRange

KEY = ShardKey("orders", "shardId-000000000000")
OPEN = Subscription("open", 1, 0, 100, 2.0, 3)


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


def test_a_report_does_not_repeat_the_number_at_which_an_event_ends() -> None:
    end = Position.after(10**55)
    at_end = BufferedEvent.of(end, 100, 1, LastRecord(10**55), ())
    assert len(msgspec.json.encode(at_end)) < 1.3 * len(msgspec.json.encode(at_end._replace(last=None)))
    assert at_end.last_record == LastRecord(10**55)
    for last in (LastRecord(10**55, 3), LastRecord(10**55 - 1), None):
        assert BufferedEvent.of(end, 100, 1, last, ()).last_record == last
    assert BufferedEvent.of(SHARD_END, 0, 0, None, ()).last_record is None


def test_it_holds_the_events_that_were_told_of() -> None:
    made = ShardSnapshot("fetcher-1", TRIM_HORIZON, 1 << 20)
    assert (made.owner, made.budget, made.index.start, made.index.held) == ("fetcher-1", 1 << 20, TRIM_HORIZON, 0)
    assert made.append([entry(20, 2), entry(30, 0), entry(40)], 10.0) == 300, "bytes, for the rates of shards"
    assert made.append([entry(50)], 12.0) == 100
    assert (made.index.end, made.index.held, made.index.records) == (Position.after(50), 400, 4)
    assert made.index.news_since(TRIM_HORIZON) == 10.0
    assert made.index.news_since(Position.after(40)) == 12.0
    made.append([entry(SHARD_END, 0)], 13.0)
    assert made.index.end == SHARD_END


def test_nothing_is_known_before_something_was_told() -> None:
    made = snapshot()
    assert (made.behind, made.read_until) == (None, None)
    assert made.quiet(50.0) == 0.0
    assert made.commit(TRIM_HORIZON) is None
    status = made.status(KEY, None, 50.0)
    assert (status.key, status.fetched, status.buffered, status.records) == (KEY, "TRIM_HORIZON", 0, 0)
    assert (status.waiting, status.behind, status.fetcher, status.subscription) == (None, None, None, None)


def test_each_report_replaces_what_was_told_beside_the_events() -> None:
    made = snapshot(entry(20))
    made.note(news(behind=700, read_until=1_700_000_000.0, subscription=OPEN), 10.0)
    assert (made.behind, made.read_until) == (700, 1_700_000_000.0)
    made.note(news(), 11.0)
    assert (made.behind, made.read_until) == (None, None)
    assert made.status(KEY, None, 11.0).subscription is None


def test_it_has_what_had_arrived_as_long_before_a_report_as_that_tells_and_all_of_a_shard_that_has_ended() -> None:
    made = snapshot(entry(20))
    assert not made.has_all_since(0.0)
    made.note(news(behind=700, unseen=2.7), 10.0)
    assert (made.has_all_since(7.3), made.has_all_since(7.31)) == (True, False)
    made.note(news(behind=700), 11.0)
    assert not made.has_all_since(0.0)
    made.append([entry(SHARD_END, 0)], 12.0)
    assert made.has_all_since(1000.0)


def test_a_shard_that_is_quiet_stays_so_while_nothing_is_told() -> None:
    made = snapshot(entry(20))
    made.note(news(quiet=3.0), 10.0)
    assert made.quiet(10.0) == 3.0
    assert made.quiet(14.0) == 7.0
    made.note(news(), 15.0)
    assert made.quiet(16.0) == 0.0


def test_its_status_grows_old_with_the_report() -> None:
    made = snapshot(entry(20, 2), entry(30))
    made.note(news(behind=700, subscription=OPEN), 11.0)
    status = made.status(KEY, "1 on host1", 12.5)
    assert (status.key, status.fetched, status.buffered, status.records) == (KEY, "AFTER:30", 300, 3)
    assert (status.waiting, status.behind, status.fetcher) == (2.5, 700, "1 on host1")
    assert status.subscription == Subscription("open", 1, 0, 100, 3.5, 3)
    made.note(news(behind=700, subscription=Subscription("open", 1, 0, 0)), 11.0)
    told = made.status(KEY, None, 12.5).subscription
    assert told is not None
    assert told.age is None, "nothing came yet"


def test_records_never_wait_for_less_than_no_time() -> None:
    assert snapshot(entry(20)).status(KEY, None, 9.0).waiting == 0.0


@pytest.mark.parametrize(
    ("silent", "ended", "behind"),
    [
        (SILENCE_SECONDS, False, 700),
        (SILENCE_SECONDS + 1, False, 700 + 1000 * (SILENCE_SECONDS + 1)),
        (SILENCE_SECONDS + 1, True, 700),
    ],
)
def test_a_shard_of_which_nothing_is_heard_falls_behind_unless_it_has_ended(
    silent: float, ended: bool, behind: int
) -> None:
    made = snapshot(entry(20), *([entry(SHARD_END, 0)] if ended else []))
    made.note(news(behind=700), 20.0)
    assert made.status(KEY, None, 20.0 + silent).behind == behind


def test_what_is_committed_goes_and_its_last_record_is_told() -> None:
    made = snapshot(entry(20, last="18:3"), entry(30, 0), entry(40, last="39"), entry(50))
    assert made.commit(Position.after(30)) == LastRecord(18, 3)
    assert (made.index.held, made.index.start) == (200, Position.after(30))
    assert made.commit(Position.after(30)) == LastRecord(18, 3), "asked for again"
    assert made.commit(Position.after(50)) == LastRecord(50), "its number is that of the event"
    assert made.index.held == 0
    made.append([entry(60, 0)], 11.0)
    assert made.commit(Position.after(60)) == LastRecord(50), "nothing came since"


def test_the_last_record_is_not_told_of_a_position_in_the_middle_of_an_event() -> None:
    made = snapshot(entry(20), entry(40, 3))
    assert made.commit(Position.after(30)) is None
    assert made.index.start == Position.after(20), "what lies before is dropped all the same"


def test_the_last_record_of_a_last_event_without_a_number_of_its_own() -> None:
    made = snapshot(entry(20), entry(SHARD_END, last="27"))
    assert made.index.last_up_to(SHARD_END, Position.after(20)) == 27
    made = snapshot(entry(20), entry(SHARD_END, last=None))
    assert made.index.last_up_to(SHARD_END, Position.after(20)) is None, "the end of a shard is no record's number"


def test_many_commits_keep_events_and_their_last_records_together() -> None:
    made = ShardSnapshot("fetcher-1", TRIM_HORIZON, 1 << 20)
    for number in range(1, 4001):
        made.append([entry(10 * number, last=str(10 * number - 1))], float(number))
        if number > 2:
            at = Position.after(10 * (number - 2))
            assert made.commit(at) == LastRecord(at.value - 1)
    assert made.index.compacted > 0
    assert len(made.index) < 2500


def test_the_last_record_of_a_range() -> None:
    made = snapshot(entry(20, last="18"), entry(40, last="39"))

    def last(after: Position, through: int) -> int | None:
        return made.last_record(ShardRange(KEY, after, Position.after(through)))

    assert (last(TRIM_HORIZON, 20), last(TRIM_HORIZON, 40), last(Position.after(20), 40)) == (18, 39, 39)
    assert last(TRIM_HORIZON, 30) is None, "it ends within an event, into which only the fetcher can see"
    assert last(Position.after(39), 40) is None, "there is none"
    made.note(news(before_end=(Position.after(30), 27)), 11.0)
    assert last(TRIM_HORIZON, 30) == 27
    assert last(Position.after(26), 30) == 27
    assert last(Position.after(27), 30) is None
    assert last(TRIM_HORIZON, 40) == 39, "told of another end"
    made.note(news(), 12.0)
    assert last(TRIM_HORIZON, 30) == 27, "it stays the same"


def test_a_buffer_that_begins_at_a_time_covers_what_its_fetcher_says() -> None:
    made = snapshot(entry(50), start=Position.at_timestamp(1_700_000_000_000))
    assert not made.index.covers(Position.after(30))
    made.note(news(lowest=30), 11.0)
    assert made.index.covers(Position.after(30))
    assert not made.index.covers(Position.after(29))
