"""KPL aggregates: what an independent aggregator makes comes apart again; what is broken stays whole."""

from hashlib import md5

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from hypothesis import given
from hypothesis import strategies as st

from kinesis_efo.records.aggregation import MAGIC, deaggregate

ALL = (0, 2**128 - 1)


def aggregate(*records: tuple[str, bytes] | tuple[str, bytes, str]) -> bytes:
    aggregator = RecordAggregator()
    for record in records:
        aggregator.add_user_record(record[0], record[1], record[2] if len(record) > 2 else None)
    return bytes(aggregator.clear_and_get().get_contents()[2])


def sealed(message: bytes) -> bytes:
    return MAGIC + message + md5(message).digest()


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def hash_of(key: str) -> int:
    return int.from_bytes(md5(key.encode()).digest(), "big")


def test_explicit_hash_keys_decide_before_partition_keys() -> None:
    inside = aggregate(("a", b"1", "5"), ("b", b"2", "9"))
    assert deaggregate(inside, (5, 9)) == [("a", b"1"), ("b", b"2")]
    assert deaggregate(inside, (6, 9)) == []
    assert deaggregate(inside, (5, 8)) == []


# Shows 50.
def test_foreign_record_drops_the_aggregate_as_in_kcl() -> None:
    keys = sorted((f"key-{number}" for number in range(10)), key=hash_of)
    data = aggregate(*((key, b"x") for key in keys))
    lowest, highest = hash_of(keys[0]), hash_of(keys[-1])
    assert len(deaggregate(data, (lowest, highest)) or []) == 10
    assert deaggregate(data, (lowest + 1, highest)) == []
    assert deaggregate(data, (lowest, highest - 1)) == []
    assert len(deaggregate(data, None) or []) == 10


def test_unknown_fields_and_tags_are_skipped() -> None:
    tag = field(1, b"name") + field(2, b"value")
    record = field(1, 0) + field(3, b"data") + field(4, tag) + field(9, 7) + varint(10 << 3 | 1) + bytes(8)
    message = field(1, b"key") + field(15, b"?") + varint(16 << 3 | 5) + bytes(4) + field(3, record)
    assert deaggregate(sealed(message), None) == [("key", b"data")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + bytes(16),
        b"plain data that is long enough to hold a digest",
        aggregate(("k", b"x"))[:-1] + b"\0",
        aggregate(("k", b"x"))[1:],
        sealed(field(3, field(1, 0) + field(3, b"x"))),  # the table of keys is empty
        sealed(field(1, b"k") + field(3, field(1, 1) + field(3, b"x"))),
        sealed(field(1, b"k") + field(3, field(1, 0))),  # no data
        sealed(field(1, b"k") + field(3, field(3, b"x"))),  # no key
        sealed(field(1, b"\xff") + field(3, field(1, 0) + field(3, b"x"))),
        sealed(field(1, b"k" * 257) + field(3, field(1, 0) + field(3, b"x"))),
        sealed(b"\x0a\x7fshort"),
        sealed(b"\x0a" + b"\xff" * 11),
        sealed(b"\x0b"),  # groups ended with protobuf 2
        sealed(b"\x08"),
        sealed(b"\x08" + b"\xff" * 100),
        sealed(b"\x0a" + b"\xff" * 9 + b"\x7fk"),  # a number of 70 bits
        sealed(field(1, b"k") + field(3, field(1, 2**63 - 1) + field(3, b""))),
        sealed(field(1, b"k") + field(3, field(1, 0) + field(2, 5) + field(3, b""))),  # no such explicit key
        sealed(b"\xff"),
    ],
)
def test_broken_aggregate_is_a_plain_record(data: bytes) -> None:
    assert deaggregate(data, ALL) is None


@pytest.mark.parametrize("explicit", [b"x", b"-1", b"1.5", "²".encode(), b""])
def test_a_hash_key_that_is_not_a_number(explicit: bytes) -> None:
    record = field(1, 0) + field(2, 0) + field(3, b"x")
    assert deaggregate(sealed(field(1, b"k") + field(2, explicit) + field(3, record)), ALL) is None


@given(st.binary(max_size=200))
def test_garbage_behind_a_right_digest_never_raises(message: bytes) -> None:
    deaggregate(sealed(message), ALL)
    deaggregate(sealed(field(1, b"k") + field(3, message)), ALL)
