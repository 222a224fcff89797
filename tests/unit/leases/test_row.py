"""Rows and lease keys: KCL's form, read tolerantly and written exactly."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.clock import SystemClock
from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.keys import LeaseKeys, run_key
from kinesis_efo.leases.lag import Lag
from kinesis_efo.leases.notes import RunNotes
from kinesis_efo.leases.row import Lease, LeaseInfo
from kinesis_efo.positions import SHARD_END, TRIM_HORIZON, LastRecord, Mark, Position, ShardKey
from kinesis_efo_tools.operate.lease_edits import moved

numbers = st.integers(0, 10**129 - 1)
positions = st.one_of(
    st.sampled_from([TRIM_HORIZON, SHARD_END]),
    numbers.map(Position.after),
    st.integers(0, 10**13).map(Position.at_timestamp),
)
texts = st.text("abc:-0123456789/", min_size=1, max_size=20)
counts = st.integers(0, 10**12)
marks = st.builds(CheckpointMark, st.builds(Mark, st.text("0123456789abcdef", min_size=1, max_size=8), counts), counts)
leases = st.builds(
    Lease,
    key=texts,
    marks=st.lists(marks, max_size=4, unique_by=lambda each: each.mark.checkpoint).map(
        lambda found: tuple(sorted(found, key=lambda each: each.at, reverse=True))
    ),
    counter=st.integers(0, 10**30),
    owner=st.none() | texts,
    checkpoint=st.none() | positions,
    sub=st.integers(0, 1000),
    owner_switches=st.integers(0, 1000),
    parents=st.frozensets(texts, max_size=2),
    children=st.frozensets(texts, max_size=2),
    starting_hash_key=st.none() | st.integers(0, 2**128 - 1).map(str),
    ending_hash_key=st.none() | st.integers(0, 2**128 - 1).map(str),
    epoch=st.integers(0, 10**9),
    endpoint=st.none() | texts,
    fetcher=st.none() | texts,
    read_until=st.none() | st.integers(0, 10**13).map(lambda milliseconds: milliseconds / 1000),
    read_since=st.none() | st.integers(1, 10**13).map(lambda milliseconds: milliseconds / 1000),
    lag=st.none()
    | st.tuples(counts, counts).map(lambda fields: Lag(*fields))
    | st.tuples(counts, counts, counts, texts, counts, st.none() | counts).map(lambda fields: Lag(*fields)),
    status=st.none() | texts,
    stream=st.none() | st.builds(StreamIdentity, texts, st.none() | st.integers(0, 10**11 - 1)),
)


@st.composite
def rows(draw: st.DrawFn) -> Lease:
    """Rows with a continuation, where they can have one: it is never before the last record."""
    row = draw(leases)
    if row.checkpoint == SHARD_END or draw(st.booleans()):
        return row
    return replace(row, continuation=(row.record or 0) + draw(st.integers(0, 10**30)))


def read(item: dict[str, Any]) -> Lease:
    row = Lease.from_item(item)
    assert row is not None
    return row


@given(rows())
def test_row_survives_the_table(lease: Lease) -> None:
    assert Lease.from_item(lease.to_item()) == lease


def test_names_and_types_are_kcls() -> None:
    lease = Lease(
        "shardId-1",
        7,
        "me",
        Position.after(49),
        2,
        1,
        frozenset({"p"}),
        frozenset({"c"}),
        "0",
        "9",
        3,
        "grpc://x",
        1700000000.123,
        51,
        StreamIdentity("arn:orders", 1_600_000_000),
        read_since=1700000000.0,
    )
    assert lease.to_item() == {
        "leaseKey": {"S": "shardId-1"},
        "leaseCounter": {"N": "7"},
        "leaseOwner": {"S": "me"},
        "checkpoint": {"S": "49"},
        "checkpointSubSequenceNumber": {"N": "2"},
        "ownerSwitchesSinceCheckpoint": {"N": "1"},
        "parentShardId": {"SS": ["p"]},
        "childShardIds": {"SS": ["c"]},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "9"},
        "epoch": {"N": "3"},
        "endpoint": {"S": "grpc://x"},
        "readUntil": {"N": "1700000000123"},
        "readSince": {"N": "1700000000000"},
        "continuation": {"S": "51"},
        "streamArn": {"S": "arn:orders"},
        "streamCreated": {"N": "1600000000"},
    }


KCL: dict[str, Any] = {
    "leaseKey": {"S": "shardId-000000000003"},
    "leaseCounter": {"N": "812"},
    "leaseOwner": {"S": "ip-10-0-0-1:8a7b"},
    "checkpoint": {"S": "49590338271490256608559692538361571095921575989136588898"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "3"},
    "pendingCheckpoint": {"S": "49590338271490256608559692538361571095921575989136588899"},
    "pendingCheckpointSubSequenceNumber": {"N": "0"},
    "pendingCheckpointState": {"B": b"state"},
    "throughputKBps": {"N": "17.25"},
    "checkpointOwner": {"S": "ip-10-0-0-2:9c"},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "340282366920938463463374607431768211455"},
    "streamName": {"S": "123456789012:orders:1700000000"},
    "shardId": {"S": "shardId-000000000003"},
    "entityType": {"S": "LEASE"},
}


def test_row_of_kcl_is_read() -> None:
    lease = read(KCL)
    assert (lease.counter, lease.owner, lease.epoch, lease.ours) == (812, "ip-10-0-0-1:8a7b", 0, False)
    assert lease.checkpoint == Position.after(49590338271490256608559692538361571095921575989136588898)


@pytest.mark.parametrize(
    ("change", "position"),
    [
        ({"checkpoint": {"S": "LATEST"}}, None),
        ({"checkpoint": {"S": "AT_TIMESTAMP"}}, None),
        ({"checkpoint": {"S": "AT_TIMESTAMP"}, "checkpointTimestamp": {"N": "12"}}, Position.at_timestamp(12)),
        ({"checkpoint": {"S": "TRIM_HORIZON"}}, TRIM_HORIZON),
        ({"checkpoint": {"S": "SHARD_END"}}, SHARD_END),
        ({"checkpoint": {"S": "9" * 129}}, Position.after(int("9" * 129))),
        ({"checkpoint": {"NULL": True}}, None),
    ],
)
def test_checkpoints_are_read(change: dict[str, Any], position: Position | None) -> None:
    assert read(KCL | change).checkpoint == position


@pytest.mark.parametrize("kind", ["STREAM", "LEADER", "WORKER_METRIC_STATS", "TABLE_MIGRATION"])
def test_rows_of_other_kinds_are_no_leases(kind: str) -> None:
    assert Lease.from_item({"leaseKey": {"S": "Leader"}, "entityType": {"S": kind}}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leaseCounter": {"NULL": True}}, "lease row 'shardId-000000000003' has no attribute 'leaseCounter'"),
        ({"continuation": {"S": "x"}}, "has attribute 'continuation' = 'x', expected a sequence number"),
        *(
            ({"leaseCounter": {"N": number}}, f"has attribute 'leaseCounter' = '{number}', expected a whole number")
            for number in ("1" + "0" * 38, "9" * 5000, "x")
        ),
        ({"leaseCounter": {"S": "8"}}, "has attribute 'leaseCounter' = {'S': '8'}, expected type N"),
        ({"leaseCounter": {"N": "1.5"}}, "has attribute 'leaseCounter' = '1.5', expected a whole number"),
        ({"checkpoint": {"S": "-1"}}, "has attribute 'checkpoint' = '-1', expected a sequence number"),
        ({"checkpoint": {"S": "NEWEST"}}, "has attribute 'checkpoint' = 'NEWEST', expected a sequence number"),
        ({"streamArn": {"S": "a"}, "streamCreated": {"N": "1.5"}}, "'streamCreated' = '1.5', expected a whole number"),
        (
            {"streamArn": {"S": "a"}, "streamCreated": {"N": "9" * 30}},
            "'streamCreated' = '999999999999999999999999999999', expected epoch seconds",
        ),
        ({"streamArn": {"S": "a"}, "streamCreated": {"N": "-1"}}, "'streamCreated' = '-1', expected epoch seconds"),
        ({"streamArn": {"N": "1"}}, "has attribute 'streamArn' = {'N': '1'}, expected type S"),
        ({"lag": {"N": "7"}}, "has attribute 'lag' = {'N': '7'}, expected type M"),
        ({"lag": {"M": {"shards": {"N": "many"}}}}, "has attribute 'shards' = 'many', expected a whole number"),
        ({"lag": {"M": {"shards": {"N": "1"}}}}, "has no attribute 'bufferedBytes'"),
        ({"parentShardId": {"S": "x"}}, "has attribute 'parentShardId' = {'S': 'x'}, expected type SS"),
    ],
)
def test_broken_attribute_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="shardId-000000000003") as caught:
        Lease.from_item(KCL | change)
    assert message in str(caught.value)


# Shows 75.
@pytest.mark.parametrize(
    ("stored", "noted", "forward"),
    [
        (Position.after(9), Position.after(10), True),
        (Position.after(10), Position.after(9), False),
        (Position.after(10), Position.after(10), False),
        (Position.after(10**55), Position.after(10**55 + 1), True),
        (TRIM_HORIZON, Position.after(0), True),
        (Position.at_timestamp(5), Position.after(0), True),
        (Position.after(0), TRIM_HORIZON, False),
        (Position.after(5), SHARD_END, True),
        (SHARD_END, Position.after(5), False),
        (None, TRIM_HORIZON, True),
    ],
)
def test_rows_only_move_forward(stored: Position | None, noted: Position, forward: bool) -> None:
    row = Lease("k", checkpoint=None) if stored is None else Lease.new("k", LeaseInfo(stored))
    assert row.advances(noted) is forward


def test_row_has_the_last_record_and_the_position_read() -> None:
    idle = Lease.new("k", LeaseInfo(Position.at_timestamp(5))).checkpointed(Position.after(40))
    assert (idle.checkpoint, idle.record, idle.position) == (Position.at_timestamp(5), None, Position.after(40))
    read = idle.checkpointed(Position.after(50), record=LastRecord(47, 6))
    assert (read.checkpoint, read.record, read.sub, read.position) == (Position.after(47), 47, 6, Position.after(50))
    later = read.checkpointed(Position.after(60))
    assert (later.record, later.sub, later.position) == (47, 6, Position.after(60)), "nothing came since"
    assert later.checkpointed(SHARD_END).checkpoint == SHARD_END
    back = moved(later, Position.after(3))
    assert (back.record, back.position, back.read_until) == (3, Position.after(3), None)
    assert Lease.from_item(back.to_item()) == back


def one() -> LeaseKeys:
    return LeaseKeys({"orders": "dev-orders"})


def two() -> LeaseKeys:
    return LeaseKeys({"orders": "dev-orders", "clicks": "dev-clicks"})


def test_keys_name_stream_and_shard() -> None:
    assert one().encode(ShardKey("orders", "shardId-1")) == "orders:shardId-1"
    assert two().encode(ShardKey("clicks", "shardId-1")) == "clicks:shardId-1"
    assert two().decode("clicks:shardId-1") == ShardKey("clicks", "shardId-1")
    with pytest.raises(ValueError, match="'x' is not a stream of this application: clicks, orders"):
        two().encode(ShardKey("x", "shardId-1"))
    with pytest.raises(ValueError, match="at least one stream"):
        LeaseKeys({})


def test_keys_of_kcl_are_read() -> None:
    assert one().decode("shardId-1") == ShardKey("orders", "shardId-1"), "where one stream is read"
    key = "123456789012:dev-orders:1700000000:shardId-1"
    assert one().decode(key) == two().decode(key) == ShardKey("orders", "shardId-1"), "by the stream's name in Kinesis"


@pytest.mark.parametrize(
    "key", ["other:shardId-1", "1:other:2:shardId-1", "1:orders:2:shardId-1", "a:b:c", "", "shardId-1"]
)
def test_keys_of_other_streams_are_ignored(key: str) -> None:
    assert two().decode(key) is None


# Shows 45, 46.
@pytest.mark.parametrize("sub", [0, 7])
def test_only_rows_of_kcl_are_inside_an_aggregate(sub: int) -> None:
    theirs = read({**KCL, "checkpoint": {"S": "49"}, "checkpointSubSequenceNumber": {"N": str(sub)}})
    assert theirs.position == Position.inside(49, sub)
    ours = theirs.taken("me", "grpc://x", 1).checkpointed(Position.after(50))
    assert ours.position == Position.after(50)
    again = read({**ours.to_item(), "checkpoint": {"S": "60"}, "checkpointSubSequenceNumber": {"N": "0"}})
    assert again.position == Position.inside(60, 0), "a KCL application went on with our row"


# Shows 45.
def test_start_inside_an_aggregate_has_the_form_of_kcl() -> None:
    inside = Position.inside(49, 7)
    row = Lease.new("p", LeaseInfo(inside))
    assert (row.checkpoint, row.sub, row.position) == (Position.after(49), 7, inside)
    assert not row.advances(inside)
    assert not row.advances(Position.inside(49, 6))
    assert row.advances(Position.after(49))
    assert row.checkpointed(Position.after(49)).position == Position.after(49)
    assert not row.checkpointed(Position.after(49)).advances(inside)


def test_notes_of_a_run_stay_in_its_row() -> None:
    notes = RunNotes(SystemClock())
    row = Lease(run_key("orders"), checkpoint=None).taken("a", "grpc://a", 1)
    assert notes.stored_in("orders", row) == row
    notes.distributed.add("orders")
    notes.record_mark(Mark("7c1f", 3))
    seen = notes.stored_in("orders", row)
    for later in (
        RunNotes(SystemClock()).stored_in("orders", seen),
        seen.renewed(),
        seen.released(),
        seen.released().taken("b", "grpc://b", 2),
    ):
        again = read(later.to_item())
        assert (again.distributed, [each.mark for each in again.marks]) == (True, [Mark("7c1f", 3)])


def test_run_has_marks_of_all_its_queries() -> None:
    notes = RunNotes(SystemClock())
    row = Lease(run_key("orders"), checkpoint=None)
    # A copy of a checkpoint may be behind, and a restored one is compared with what this run has noted, too.
    for mark in (Mark("7c1f", 3), Mark("ab12", 9), Mark("7c1f", 4), Mark("ab12", 10), Mark("7c1f", 2)):
        notes.record_mark(mark)
    for marks in (notes.stored_in("orders", row).marks, notes.reached("orders")):
        assert {each.mark for each in marks} == {Mark("7c1f", 4), Mark("ab12", 10)}


def test_row_in_the_present_form_counts_first() -> None:
    shard = ShardKey("orders", "shardId-1")
    ours, old, kcl = "orders:shardId-1", "shardId-1", "123456789012:dev-orders:1:shardId-1"
    assert one().by_shard({old: 1, ours: 2, kcl: 3}) == {shard: 2}
    assert one().by_shard({ours: 2, old: 1, kcl: 3}) == {shard: 2}
    assert one().by_shard({kcl: 3, old: 1}) == {shard: 3}, "else the first"
    assert one().by_shard({old: 1}) == {shard: 1}
    assert one().by_shard({"#run:orders": 4, "other:shardId-1": 5}) == {}


@pytest.mark.parametrize("value", [10**18, -1, 10**37, 10**60])
@pytest.mark.parametrize(
    "attribute",
    [
        lambda value: {"readUntil": value},
        lambda value: {"writtenAt": value},
        lambda value: {"checkpoint": {"S": "AT_TIMESTAMP"}, "checkpointTimestamp": value},
        lambda value: {"lag": {"M": {"shards": {"N": "1"}, "bufferedBytes": {"N": "1"}, "at": value}}},
        lambda value: {"marks": {"M": {"c": {"M": {"moved": {"N": "1"}, "at": value}}}}},
    ],
    ids=["readUntil", "writtenAt", "checkpointTimestamp", "lag", "marks"],
)
def test_impossible_times_are_refused(attribute: Any, value: int) -> None:
    item = {"leaseKey": {"S": "orders:shardId-0"}, "leaseCounter": {"N": "1"}, **attribute({"N": str(value)})}
    with pytest.raises(
        ValueError, match=r"lease row 'orders:shardId-0' has attribute '\w+' = .*, expected a (time|whole)"
    ):
        Lease.from_item(item)
