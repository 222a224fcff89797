"""When a range is complete, and which rows belong to it."""

import json
from typing import Any

import pytest

from kinesis_efo.batch.ending import DISORDER_MS, Completion, last_arrival, rows_of
from kinesis_efo.batch.ranges import BatchRange
from kinesis_efo.errors import FrameError, RetriesExhaustedError
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, Position, ShardKey
from kinesis_efo.records.decoder import decode
from kinesis_efo.records.events import Event, read_answer

KEY = ShardKey("orders", "shardId-000000000000")
EIGHT, NINE = 1_700_000_000_000, 1_700_003_600_000
UNTIL_NINE = Position.at_timestamp(NINE)


def part(start: Position = TRIM_HORIZON, end: Position = UNTIL_NINE) -> BatchRange:
    return BatchRange(KEY, (0, 9), start, end)


def event(*arrivals: int | None, behind: int = 0, first: int = 10) -> Event:
    """Records that arrived at these times, epoch milliseconds, with sequence numbers from `first` on."""
    records: list[dict[str, Any]] = [
        {"Data": "eA==", "SequenceNumber": str(first + index), "PartitionKey": "k"}
        | ({} if arrival is None else {"ApproximateArrivalTimestamp": arrival / 1000})
        for index, arrival in enumerate(arrivals)
    ]
    body = {"Records": records, "MillisBehindLatest": behind, "NextShardIterator": "i"}
    return read_answer(json.dumps(body).encode(), asked="before").events[0]


END = Event(b"", read_answer(b'{"Records":[],"ChildShards":[{"ShardId":"c","ParentShards":[],"HashKeyRange":'
                             b'{"StartingHashKey":"0","EndingHashKey":"9"}}]}').events[0].head)  # fmt: skip


def is_complete(of: BatchRange, *events: Event, server_time: float = 0.0, every: float = 1.0) -> bool:
    """Whether a range is complete after events that come so many seconds apart; it is not before the last of them."""
    completion = Completion(of, timeout=60.0)
    *before, last = [completion.after(each, server_time, number * every) for number, each in enumerate(events)]
    assert not any(before)
    return last


def test_late_record_ends_a_range() -> None:
    assert not is_complete(part(), event(NINE - 1, behind=5))
    assert not is_complete(part(), event(NINE + DISORDER_MS - 1, behind=5))
    assert is_complete(part(), event(NINE + DISORDER_MS, behind=5))


NOTHING = event(behind=0)
"""An answer that says that nothing is left."""

UPTO = part(end=Position.after(12))


def test_tip_ends_a_range_after_its_time() -> None:
    assert not is_complete(part(), *[NOTHING] * 9, server_time=NINE / 1000)
    assert is_complete(part(), *[NOTHING] * 3, server_time=NINE / 1000 + 1)
    more = event(NINE - 5, behind=0)
    assert not is_complete(part(), NOTHING, NOTHING, more, server_time=NINE / 1000 + 1), "more may have arrived with it"
    assert is_complete(part(), NOTHING, NOTHING, more, *[NOTHING] * 3, server_time=NINE / 1000 + 1)


def test_range_ends_at_its_number_or_tip() -> None:
    assert not is_complete(UPTO, event(EIGHT, EIGHT, behind=5))
    assert is_complete(UPTO, event(EIGHT, EIGHT, EIGHT, behind=5))
    assert is_complete(UPTO, *[NOTHING] * 3)
    assert not is_complete(UPTO, event(EIGHT, behind=0))
    assert not is_complete(UPTO, NOTHING), "a single answer is not believed"
    assert not is_complete(UPTO, *[NOTHING] * 9, every=0.2), "nor are many at once"


def test_endless_lag_ends_a_range() -> None:
    assert is_complete(UPTO, *[event(behind=5_000 + 1_000 * number) for number in range(3)])
    shrinking = [event(behind=5_000 - number) for number in range(40)]
    assert not is_complete(UPTO, *shrinking), "it goes through a time without records"
    assert is_complete(UPTO, event(behind=0), event(behind=9_000), event(behind=0)), "whatever it says in between"


@pytest.mark.parametrize("end", [UNTIL_NINE, Position.after(12), SHARD_END], ids=str)
def test_a_closed_shard_does_not_end_because_nothing_comes(end: Position) -> None:
    closed = BatchRange(KEY, (0, 9), TRIM_HORIZON, end, last=99)
    assert not is_complete(closed, *[NOTHING] * 50, server_time=NINE)
    assert is_complete(closed, *[NOTHING] * 50, END, server_time=NINE)
    with pytest.raises(
        RetriesExhaustedError, match=r"orders:shardId-0+ has not reached its end at AFTER:99.* 61 responses in 60 s"
    ):
        is_complete(closed, *[NOTHING] * 62, server_time=NINE)


def kept(found: BatchRange, *arrivals: int | None) -> list[str]:
    (batch,) = decode([event(*arrivals).payload], KEY, TRIM_HORIZON, SHARD_END, deaggregate=True)
    numbers: list[str] = rows_of(found, batch)["sequenceNumber"].to_pylist()
    return numbers


def test_rows_are_selected_by_arrival_time() -> None:
    hour = part(Position.at_timestamp(EIGHT))
    assert kept(hour, EIGHT - 1, EIGHT, NINE - 1, NINE, EIGHT + 5) == ["11", "12", "14"]
    assert kept(hour, EIGHT, NINE - 1) == ["10", "11"]
    assert kept(hour, NINE, NINE + 1) == []
    assert kept(part(), 5, NINE - 1, NINE) == ["10", "11"]
    assert kept(part(Position.at_timestamp(EIGHT), SHARD_END), EIGHT - 1, EIGHT, NINE) == ["11", "12"]
    assert kept(part(Position.at_timestamp(EIGHT), SHARD_END), EIGHT, NINE) == ["10", "11"]
    assert kept(part(Position.after(9), Position.after(12)), 5, NINE) == ["10", "11"]


def test_record_without_arrival_time_is_refused() -> None:
    with pytest.raises(FrameError, match="has no arrival time"):
        kept(part(), EIGHT, None)
    assert kept(part(Position.after(9), SHARD_END), EIGHT, None) == ["10", "11"]


@pytest.mark.parametrize("written", [b"1.7E9", b"1700000000", b"1700000000.000"])
def test_times_are_read_as_services_write_them(written: bytes) -> None:
    body = (
        b'{"Records":[{"ApproximateArrivalTimestamp" : 1.5, "Data":""},{"ApproximateArrivalTimestamp" : %b}]}' % written
    )
    assert last_arrival(body) == EIGHT
    assert last_arrival(b'{"Records":[{"Data":""}]}') is None
