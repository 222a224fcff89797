"""Heads of events: read from any JSON, or refused as a FrameError; and marks of when their records arrived."""

import json
import re
from base64 import b64encode
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.errors import FrameError, SequenceNumberError
from kinesis_efo.positions import SHARD_END, LastRecord
from kinesis_efo.records.events import (
    ChildShard,
    Event,
    EventHead,
    has_record,
    last_record,
    read_answer,
    read_arrivals,
    read_head,
)
from tests.support.decoders import DEEP, TOO_DEEP
from tests.support.decoders import decoder as decoder
from tests.unit.records.test_decoder import aggregate

CHILD = {
    "ShardId": "shardId-000000000001",
    "ParentShards": ["shardId-000000000000"],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
}


def event(**fields: object) -> bytes:
    return json.dumps({"ContinuationSequenceNumber": "42", "MillisBehindLatest": 0, "Records": [], **fields}).encode()


@pytest.mark.parametrize("parents", [["shardId-000000000000"], ["shardId-000000000000", "shardId-000000000007"]])
def test_the_end_of_a_shard(parents: list[str]) -> None:
    payload = event(ContinuationSequenceNumber=None, ChildShards=[{**CHILD, "ParentShards": parents}])
    head = read_head(payload)
    assert head == EventHead(None, 0, 0, (ChildShard("shardId-000000000001", tuple(parents), 0, 2**128 - 1),))
    assert Event(payload, head).through == SHARD_END


# Shows 57.
@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"{}", "has neither a continuation nor child shards"),
        (event(ContinuationSequenceNumber=None, ChildShards=[]), "has neither a continuation nor child shards"),
        (event(ChildShards=[CHILD]), "has a continuation and child shards"),
        (b"", "an event of 0 bytes cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b'{"ContinuationSequenceNumber":"\xff"}', "(?i:utf-8)"),
        (b'{"ContinuationSequenceNumber":"\\ud800"}', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'{"ContinuationSequenceNumber":"1","x":' + b"[" * DEEP, TOO_DEEP),
        (event(ContinuationSequenceNumber="1" * 201), "a number of at most 200 digits; got '1111"),
        (event(ContinuationSequenceNumber="1" * 100_000), "at most 200 digits"),
        (event(ContinuationSequenceNumber="-1"), "got '-1'"),
        (event(ContinuationSequenceNumber="12²"), "got '12²'"),
        (event(ContinuationSequenceNumber=""), "neither a continuation nor child shards"),
        (event(ContinuationSequenceNumber=42), "Expected `str"),
        (b'{"ContinuationSequenceNumber":"1","MillisBehindLatest":' + b"9" * 5000 + b"}", "out of range"),
        (event()[:-1] + b',"MillisBehindLatest":' + b"9" * (1 << 20) + b"}", "out of range"),
        (event()[:-1] + b',"MillisBehindLatest":1e999}', "cannot be read"),
        (event()[:-1] + b',"Extra":' + b"[" * DEEP + b"]" * DEEP + b"}", TOO_DEEP),
        (event()[:-1] + b',"Records":[{"Extra":' + b"[" * DEEP + b"]" * DEEP + b"}]}", TOO_DEEP),
        (b'{"a":' * DEEP + b"1" + b"}" * DEEP, TOO_DEEP),
        (
            event(
                ContinuationSequenceNumber=None,
                ChildShards=[{**CHILD, "HashKeyRange": {"StartingHashKey": "a", "EndingHashKey": "1"}}],
            ),
            "StartingHashKey of an event must be a number",
        ),
    ],
)
def test_broken_event_is_refused_with_the_reason(payload: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message) as caught:
        read_head(payload)
    assert len(str(caught.value)) < 700, "a payload must not flow into the log"


def test_continuation_before_the_last_record_is_refused() -> None:
    records = [{"SequenceNumber": number, "Data": "eA==", "PartitionKey": "k"} for number in ("41", "42")]
    with pytest.raises(FrameError, match="with 2 records continues at 41, before its last record, 42"):
        read_head(event(Records=records, ContinuationSequenceNumber="41"))
    for continuation in ("42", "43"):
        assert read_head(event(Records=records, ContinuationSequenceNumber=continuation)).records == 2
    read_head(event(Records=[{"SequenceNumber": "9" * 5000}], ContinuationSequenceNumber="1"))


@pytest.mark.parametrize(("continuation", "record"), [("0042", "42"), ("42", "0042"), ("042", "042")])
def test_numbers_with_leading_zeros_are_refused(continuation: str, record: str) -> None:
    records = [{"SequenceNumber": record, "Data": "eA=="}]
    with pytest.raises(SequenceNumberError, match=r"'0+42' has leading zeros"):
        read_head(event(Records=records, ContinuationSequenceNumber=continuation))
    if record.startswith("0"):
        with pytest.raises(SequenceNumberError, match="has leading zeros"):
            read_answer(json.dumps({"Records": records, "NextShardIterator": "i"}).encode())
    assert read_head(event(ContinuationSequenceNumber="0")).continuation == 0


@given(st.binary(max_size=100))
def test_garbage_raises_frame_errors_only(garbage: bytes) -> None:
    for payload in (
        garbage,
        event()[:40] + garbage,
        b'{"ContinuationSequenceNumber":"1","Records":[{"Data":"' + garbage + b'"}]}',
    ):
        with suppress(FrameError):
            read_head(payload)


@given(
    st.lists(st.tuples(st.integers(0, 10**56), st.text(max_size=60), st.binary(max_size=30)), max_size=4),
    st.integers(0, 10**56),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
)
def test_last_number_is_found_whatever_the_data(
    records: list[tuple[int, str, bytes]], continuation: int, separators: tuple[str, str], number_first: bool
) -> None:
    def record(number: int, key: str, data: bytes) -> dict[str, str]:
        rest = {"PartitionKey": key + '"SequenceNumber":"1"', "Data": b64encode(data).decode()}
        name = {"SequenceNumber": str(number)}
        return name | rest if number_first else rest | name

    document = {"ContinuationSequenceNumber": str(continuation), "Records": [record(*each) for each in records]}
    for ordered in (document, dict(reversed(document.items()))):
        payload = json.dumps(ordered, separators=separators).encode()
        assert last_record(payload) == (LastRecord(records[-1][0]) if records else None)
        through = [LastRecord(number) for number, *_ in records if number <= continuation]
        assert last_record(payload, continuation) == max(through, default=None)


@pytest.mark.parametrize("number_first", [True, False])
def test_last_record_has_the_index_in_its_aggregate(number_first: bool) -> None:
    def record(number: int, data: bytes) -> dict[str, str]:
        name, rest = {"SequenceNumber": str(number)}, {"Data": b64encode(data).decode(), "PartitionKey": "Data"}
        return name | rest if number_first else rest | name

    five, three = aggregate(*"kkkkk"), aggregate(*"kkk")
    broken = five[:-1] + bytes([five[-1] ^ 1])
    payload = json.dumps(
        {"Records": [record(41, five), record(42, b"x"), record(43, broken), record(44, three)]}
    ).encode()
    assert last_record(payload) == LastRecord(44, 2)
    for number, index in ((41, 4), (42, 0), (43, 0), (44, 2)):
        assert last_record(payload, number) == LastRecord(number, index)
    for data, index in ((five, 4), (b"x" * 100, 0), (broken, 0), (b"", 0)):
        alone = json.dumps({"Records": [record(41, three), record(42, data)]}).encode()
        assert last_record(alone) == LastRecord(42, index)


def test_record_is_found_like_a_regular_expression() -> None:
    plain = re.compile(rb'"SequenceNumber"\s*:\s*"42"')
    parts = (b'"SequenceNumber"', b":", b" \n", b'"42"', b'"', b"42", b'"4"')
    texts = [b"".join(chosen) for chosen in product(parts, repeat=5)]
    assert [text for text in texts if has_record(text, 42)] == [text for text in texts if plain.search(text)]


def with_arrivals(*arrivals: float | None) -> bytes:
    records = [
        {"SequenceNumber": str(10**60 + number), "Data": "eA==", "ApproximateArrivalTimestamp": arrived}
        for number, arrived in enumerate(arrivals)
    ]
    return json.dumps({"Records": records, "MillisBehindLatest": 0}).encode()


@given(st.lists(st.integers(0, 100_000), max_size=50), st.integers(1, 20_000))
def test_every_record_is_in_one_short_mark(arrivals: list[int], step: int) -> None:
    groups = read_arrivals(with_arrivals(*(each / 1000 for each in arrivals)), step)
    left = list(enumerate(arrivals))
    for mark in groups:
        some, left = left[: mark.records], left[mark.records :]
        assert mark.earliest == min(arrived for _, arrived in some)
        assert mark.latest == max(arrived for _, arrived in some)
        assert mark.latest - mark.earliest <= step
        assert mark.through == 10**60 + some[-1][0]
    assert left == []


def test_a_steady_trickle_is_a_few_marks() -> None:
    groups = read_arrivals(with_arrivals(*(1_700_000_000 + second for second in range(1200))), 3_000)
    assert len(groups) == 300
    assert groups[0].earliest == 1_700_000_000_000 and groups[-1].latest == 1_700_001_199_000


@pytest.mark.parametrize(
    "wrong", [with_arrivals(1.0, None, 3.0), b"", b"[]", b'{"Records":[{}]}', b"\xff", with_arrivals()]
)
def test_unreadable_arrivals_give_no_marks(wrong: bytes) -> None:
    assert read_arrivals(wrong, 1_000) == ()
