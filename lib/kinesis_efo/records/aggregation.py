"""Splits KPL aggregates: Kinesis records that contain many user records.

Format: a magic number, a protobuf message, and its MD5 (awslabs/amazon-kinesis-producer, aggregation-format.md). This module has its own
parser, because the version of the `protobuf` package would have to suit PySpark and the user's program. The parser checks lengths and
Kinesis' limit for partition keys, so that a small input cannot produce a large output.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import md5
from typing import Final, NamedTuple

MAGIC: Final = b"\xf3\x89\x9a\xc2"
"""The first bytes of every aggregate."""

_DIGEST: Final = 16
_MOST_KEY_CHARACTERS: Final = 256
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class UserRecord(NamedTuple):
    """One record inside an aggregate, with its own partition key."""

    partition_key: str
    data: bytes


class _Corrupt(ValueError):
    """The bytes begin with the magic number of aggregates, but are not a valid aggregate."""


def deaggregate(data: bytes, hash_range: tuple[int, int] | None) -> list[UserRecord] | None:
    """Return the user records of an aggregate, in order. A record's index in the list is its sub-sequence number.

    Returns None if the data is not a valid aggregate. A corrupt aggregate thus counts as an ordinary record.

    After a reshard, an aggregate may contain a record with a hash key of another shard. The KPL sends the records of such an aggregate again,
    and the KCL (AggregatorUtil.deaggregate) drops the whole aggregate. If the shard's `hash_range` is given, this function drops it, too,
    and returns []. Other producers do not send the records again: pass None if no record may be lost.
    """
    if len(data) <= len(MAGIC) + _DIGEST or not data.startswith(MAGIC):
        return None
    message, digest = data[len(MAGIC) : -_DIGEST], data[-_DIGEST:]
    if md5(message, usedforsecurity=False).digest() != digest:
        return None
    try:
        keys, explicit, records = _read(message)
        user_records = [UserRecord(keys[key], body) for key, _, body in records]
        if hash_range and not all(
            hash_range[0] <= (_number(explicit[chosen]) if chosen is not None else _hash(keys[key])) <= hash_range[1]
            for key, chosen in {(key, chosen) for key, chosen, _ in records}
        ):
            return []
    except (_Corrupt, IndexError, UnicodeDecodeError):
        return None
    return user_records


def _read(message: bytes) -> tuple[list[str], list[str], list[tuple[int, int | None, bytes]]]:
    keys: list[str] = []
    explicit: list[str] = []
    records: list[tuple[int, int | None, bytes]] = []
    for number, value in _fields(message):
        if number in (1, 2) and isinstance(value, bytes):
            text = value.decode()
            if len(text) > _MOST_KEY_CHARACTERS:
                raise _Corrupt
            (keys if number == 1 else explicit).append(text)
        elif number == 3 and isinstance(value, bytes):
            records.append(_record(value))
    return keys, explicit, records


def _record(message: bytes) -> tuple[int, int | None, bytes]:
    key: int | None = None
    explicit: int | None = None
    data: bytes | None = None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, int):
            key = value
        elif number == 2 and isinstance(value, int):
            explicit = value
        elif number == 3 and isinstance(value, bytes):
            data = value
    if key is None or data is None:
        raise _Corrupt
    return key, explicit, data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == _LENGTH:
            length, at = _varint(message, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise _Corrupt
        if length > end - at:
            raise _Corrupt
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    # Fast path: most numbers consist of a single byte.
    value = message[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = message[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise _Corrupt


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _Corrupt
    return int(text)


def _hash(partition_key: str) -> int:
    return int.from_bytes(md5(partition_key.encode(), usedforsecurity=False).digest(), "big")
