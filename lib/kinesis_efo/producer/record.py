"""Validates the records to write. A `Record` is a msgspec struct, which is faster to create than an ordinary object."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from kinesis_efo.errors import RecordRefusedError
from kinesis_efo.producer.routing import MAX_HASH

try:
    # Use Python's built-in MD5, which is faster here: setting up OpenSSL's costs more than hashing the few bytes of a key.
    from _md5 import md5  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from hashlib import md5

Data = bytes | bytearray | memoryview | str
PutArguments = tuple[Data, str | None] | tuple[Data, str | None, str | int | None]
"""The arguments of `put`: data, partition key (random if None), and optionally the explicit hash key."""
MAX_KEY_CHARACTERS = 256


class Epoch:
    """Counts the outstanding records that were put between two flushes. The second of these flushes waits until the count is 0."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """The maximum size of a record, including its partition key."""

    bytes: int
    source: str = "the stream accepts"  # Where the limit comes from, for messages
    remedy: str = "the stream's maximum record size (at most 10 MiB)"


class Written(NamedTuple):
    """Where Kinesis has stored a record. All records of an aggregate have the same sequence number."""

    shard_id: str
    sequence_number: str


class Record(msgspec.Struct, gc=False, eq=False):
    """One record that was put.

    Attributes:
        hash: The explicit hash key (`hash_key`), or else the partition key's MD5, as a number. It selects the shard.
        size: Bytes of data and partition key, as Kinesis counts them.
        position: The record's number in messages, by default the number of records put before it.
        put_at: Time of the put, in monotonic seconds.
        refused_at: Time at which Kinesis first rejected the record, in monotonic seconds.
        epoch: The epoch that counts this record until it is acknowledged.
        sent: The future that `send` returned, if any.
    """

    data: bytes
    key: str
    hash_key: str | None
    hash: int
    size: int
    position: int = 0
    put_at: float = 0.0
    refused_at: float | None = None
    epoch: Epoch | None = None
    sent: Future[Written] | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        """A tuple of this record alone, for code that handles records and aggregates alike."""
        return (self,)

    def describe(self) -> str:
        """Describe the record for messages, without its data."""
        return _describe(self.position, self.key, self.size)


def make_record(data: Data, key: str, hash_key: str | int | None, limit: SizeLimit, position: int) -> Record:
    """Validate data and keys, and create a record. `limit` applies to data and key together. `position`: the record's index, for messages."""
    if not isinstance(data, bytes):
        data = _as_bytes(data, key, position)
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARACTERS:
        problem = f"has {len(key)} characters: {_short(key)}" if isinstance(key, str) else f"is {key!r}"
        raise RecordRefusedError(
            f"record {position} ({len(data)} bytes of data): the partition key must be a text of 1 to {MAX_KEY_CHARACTERS} "
            f"characters; it {problem}"
        )
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise RecordRefusedError(
            f"record {position} ({len(data)} bytes of data): the partition key {_short(key)} is not valid Unicode"
        ) from None
    size = len(data) + len(encoded)
    if size > limit.bytes:
        raise RecordRefusedError(
            f"{_describe(position, key, size)} is larger than the {limit.bytes} bytes that {limit.source} (partition key "
            f"included). Make it smaller, or raise {limit.remedy}"
        )
    if hash_key is None:
        ring = int.from_bytes(md5(encoded, usedforsecurity=False).digest(), "big")
        return Record(data, key, None, ring, size, position)
    # Remove leading zeros: Kinesis rejects the whole request if a hash key has any.
    text = str(hash_key)
    plain = text.lstrip("0") or text[-1:]
    if not (text.isascii() and text.isdigit() and len(plain) <= 39 and int(plain) <= MAX_HASH):
        raise RecordRefusedError(
            f"{_describe(position, key, size)}: the explicit hash key must be a whole number from 0 to 2**128-1; "
            f"got {hash_key!r}"
        )
    return Record(data, key, plain, int(plain), size, position)


def _as_bytes(data: Data, key: object, position: int) -> bytes:
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    if not isinstance(data, str):
        got = "null (filter such rows out)" if data is None else type(data).__name__
        raise RecordRefusedError(
            f"record {position}: data must be bytes or text; got {got} (partition key {_short(key)})"
        )
    try:
        return data.encode()
    except UnicodeEncodeError:
        raise RecordRefusedError(
            f"record {position} (partition key {_short(key)}): data is a text that is not valid Unicode; give bytes"
        ) from None


def _describe(position: int, key: str, size: int) -> str:
    return f"record {position} (partition key {_short(key)}, {size} bytes)"


def _short(key: object) -> str:
    return repr(key) if not isinstance(key, str) or len(key) <= 64 else repr(key[:64]) + "..."
