"""Writes the KPL's aggregated record format.

An aggregate is a magic number, a protobuf message (a table of partition keys, a table of explicit hash keys, and records that
refer to both), and the MD5 of the message; see aggregation-format.md in awslabs/amazon-kinesis-producer. This module encodes the
message without a protobuf runtime, which would have to be compatible with the one in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import md5
from typing import TypeAlias

from kinesis_efo.producer.record import Record

MAGIC = b"\xf3\x89\x9a\xc2"
_FRAME = len(MAGIC) + 16
_PARTITION_KEY, _HASH_KEY, _RECORD = b"\x0a", b"\x12", b"\x1a"
_KEY_INDEX, _HASH_KEY_INDEX, _DATA = b"\x08", b"\x10", b"\x1a"


class Aggregate:
    """A KPL aggregate: one Kinesis record with several records of one shard. It has the partition key and hash key of its first record."""

    __slots__ = ("data", "hash_key", "key", "records", "size")

    def __init__(self, records: Sequence[Record], data: bytes) -> None:
        self.records = records
        self.data = data
        self.key = records[0].key
        # Always set an explicit hash key: the first record's hash key may differ from the MD5 of its partition key.
        self.hash_key: str | None = str(records[0].hash)
        self.size = len(data) + len(self.key.encode())


Parcel: TypeAlias = Record | Aggregate
"""One Kinesis record in a request: a single record or an aggregate."""


class Packer:
    """Collects records for one aggregate. `max_bytes` is the maximum size of the aggregate, including its partition key."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._records: list[Record] = []
        self._keys: dict[str, int] = {}
        self._hash_keys: dict[str, int] = {}
        self._tables: list[bytes] = []
        self._body: list[bytes] = []
        self._size = _FRAME

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> bool:
        """Add a record if the aggregate then stays within `max_bytes`, or if it is the first record. Returns whether it was added."""
        tables: list[bytes] = []
        key_index = self._keys.get(record.key)
        if key_index is None:
            encoded = record.key.encode()
            tables += (_PARTITION_KEY, _varint(len(encoded)), encoded)
        inner = [_KEY_INDEX, _varint(len(self._keys) if key_index is None else key_index)]
        hash_index: int | None = None
        if record.hash_key is not None:
            hash_index = self._hash_keys.get(record.hash_key)
            if hash_index is None:
                encoded = record.hash_key.encode()
                tables += (_HASH_KEY, _varint(len(encoded)), encoded)
            inner += (_HASH_KEY_INDEX, _varint(len(self._hash_keys) if hash_index is None else hash_index))
        inner += (_DATA, _varint(len(record.data)), record.data)
        length = sum(map(len, inner))
        prefix = _varint(length)
        added = sum(map(len, tables)) + 1 + len(prefix) + length
        if self._records and self._size + added + len(self._records[0].key.encode()) > self._max_bytes:
            return False
        if key_index is None:
            self._keys[record.key] = len(self._keys)
        if record.hash_key is not None and hash_index is None:
            self._hash_keys[record.hash_key] = len(self._hash_keys)
        self._tables += tables
        self._body += (_RECORD, prefix, *inner)
        self._size += added
        self._records.append(record)
        return True

    def seal(self) -> Parcel:
        """Return the aggregate of the added records, or the record itself if there is only one."""
        if len(self._records) == 1:
            return self._records[0]
        message = b"".join(self._tables) + b"".join(self._body)
        return Aggregate(self._records, MAGIC + message + md5(message, usedforsecurity=False).digest())


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [bytes((value,)) for value in range(0x80)]
