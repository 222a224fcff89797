"""When a stretch is complete, and which rows belong to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinesis_efo.batch.ending import DISORDER_MS, first_position, is_complete, last_arrival, rows_of
from kinesis_efo.batch.stretches import Stretch
from kinesis_efo.errors import FrameError
from kinesis_efo.kinesis.events import Event, read_answer
from kinesis_efo.kinesis.records import decode
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey

KEY = ShardKey("orders", "shardId-000000000000")
EIGHT, NINE = 1_700_000_000_000, 1_700_003_600_000
UNTIL_NINE = Position.at_timestamp(NINE)


def stretch(start: Position = TRIM_HORIZON, end: Position = UNTIL_NINE) -> Stretch:
    return Stretch(KEY, (0, 9), start, end)


def event(*arrivals: int | None, behind: int = 0, first: int = 10) -> Event:
    """Records that arrived at these times, epoch milliseconds, with sequence numbers from `first` on."""
    records: list[dict[str, Any]] = [
        {"Data": "eA==", "SequenceNumber": str(first + index), "PartitionKey": "k"}
        | ({} if arrival is None else {"ApproximateArrivalTimestamp": arrival / 1000})
        for index, arrival in enumerate(arrivals)
    ]
    body = {"Records": records, "MillisBehindLatest": behind, "NextShardIterator": "i"}
    return read_answer(json.dumps(body).encode()).events[0]


END = Event(b"", read_answer(b'{"Records":[],"ChildShards":[{"ShardId":"c","ParentShards":[],"HashKeyRange":'
                             b'{"StartingHashKey":"0","EndingHashKey":"9"}}]}').events[0].head)  # fmt: skip


def test_a_time_is_reached_by_a_record_that_arrived_well_after_it() -> None:
    assert not is_complete(stretch(), event(NINE - 1, behind=5), 0)
    assert not is_complete(stretch(), event(NINE + DISORDER_MS - 1, behind=5), 0)
    assert is_complete(stretch(), event(NINE + DISORDER_MS, behind=5), 0)


def test_a_time_is_reached_at_the_tip_once_it_has_passed_for_kinesis() -> None:
    assert not is_complete(stretch(), event(behind=0), NINE / 1000)
    assert is_complete(stretch(), event(behind=0), NINE / 1000 + 1)
    assert not is_complete(stretch(), event(NINE - 5, behind=0), NINE / 1000 + 1), "more may have arrived with these"
    assert not is_complete(stretch(), event(behind=1), NINE / 1000 + 99)


def test_a_number_is_reached_with_it_and_at_the_tip() -> None:
    upto = stretch(end=Position.after(12))
    assert not is_complete(upto, event(EIGHT, EIGHT, behind=5), 0)
    assert is_complete(upto, event(EIGHT, EIGHT, EIGHT, behind=5), 0)
    assert is_complete(upto, event(behind=0), 0)
    assert not is_complete(upto, event(EIGHT, behind=0), 0)
    assert not is_complete(upto, event(behind=5), 0), "an answer without records has no position"


def test_the_end_of_a_shard_ends_every_stretch() -> None:
    for end in (Position.at_timestamp(NINE), Position.after(99), SHARD_END):
        assert is_complete(stretch(end=end), END, 0)
    assert not is_complete(stretch(end=SHARD_END), event(EIGHT, behind=0), NINE)


def test_reading_begins_before_a_time_and_at_a_position() -> None:
    assert first_position(stretch(Position.at_timestamp(EIGHT))) == Position.at_timestamp(EIGHT - DISORDER_MS)
    assert first_position(stretch(Position.at_timestamp(5))) == Position.at_timestamp(0)
    assert first_position(stretch(Position.after(7))) == Position.after(7)


def kept(found: Stretch, *arrivals: int | None) -> list[str]:
    (batch,) = decode([event(*arrivals).payload], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True)
    numbers: list[str] = rows_of(found, batch)["sequenceNumber"].to_pylist()
    return numbers


def test_rows_belong_to_a_stretch_by_their_own_time_whatever_their_order() -> None:
    hour = stretch(Position.at_timestamp(EIGHT))
    assert kept(hour, EIGHT - 1, EIGHT, NINE - 1, NINE, EIGHT + 5) == ["11", "12", "14"]
    assert kept(hour, EIGHT, NINE - 1) == ["10", "11"]
    assert kept(hour, NINE, NINE + 1) == []
    assert kept(stretch(), 5, NINE - 1, NINE) == ["10", "11"]
    assert kept(stretch(Position.at_timestamp(EIGHT), SHARD_END), EIGHT - 1, EIGHT, NINE) == ["11", "12"]
    assert kept(stretch(Position.after(9), Position.after(12)), 5, NINE) == ["10", "11"]


def test_a_record_without_a_time_is_in_no_stretch_of_time() -> None:
    with pytest.raises(FrameError, match="does not say when it arrived"):
        kept(stretch(), EIGHT, None)
    assert kept(stretch(Position.after(9), SHARD_END), EIGHT, None) == ["10", "11"]


@pytest.mark.parametrize("written", [b"1.7E9", b"1700000000", b"1700000000.000"])
def test_times_are_read_as_services_write_them(written: bytes) -> None:
    body = (
        b'{"Records":[{"ApproximateArrivalTimestamp" : 1.5, "Data":""},{"ApproximateArrivalTimestamp" : %b}]}' % written
    )
    assert last_arrival(body) == EIGHT
    assert last_arrival(b'{"Records":[{"Data":""}]}') is None
