"""PutRecord and PutRecords, the server's hot path: requests are decoded into structs, and data stays in base64."""

from __future__ import annotations

from typing import Any

import msgspec
import pybase64

from .errors import AwsError, invalid
from .shards import MAX_HASH, Shard
from .state import Kinesis
from .streams import Moment, Stream

MAX_PUT_RECORDS = 500
MAX_PUT_BYTES = 10 * 1024 * 1024


class Entry(msgspec.Struct, gc=False):
    """A record to put, its data in base64."""

    data: str = msgspec.field(name="Data")
    key: str | None = msgspec.field(name="PartitionKey", default=None)
    hash_key: str | None = msgspec.field(name="ExplicitHashKey", default=None)


class PutRecords(msgspec.Struct):
    """The request of PutRecords."""

    records: list[Entry] = msgspec.field(name="Records")
    stream_name: str | None = msgspec.field(name="StreamName", default=None)
    stream_arn: str | None = msgspec.field(name="StreamARN", default=None)
    dry_run: bool | None = msgspec.field(name="DryRun", default=None)


class PutRecord(Entry):
    """The request of PutRecord."""

    stream_name: str | None = msgspec.field(name="StreamName", default=None)
    stream_arn: str | None = msgspec.field(name="StreamARN", default=None)
    dry_run: bool | None = msgspec.field(name="DryRun", default=None)
    after: str | None = msgspec.field(name="SequenceNumberForOrdering", default=None)


def put_record(kinesis: Kinesis, request: PutRecord) -> dict[str, Any]:
    """PutRecord."""
    stream = _writable(kinesis, request.stream_name, request.stream_arn)
    if request.after is not None and stream.traits.distributed:
        raise invalid(
            f"SequenceNumberForOrdering must not be provided for stream {stream.name}, whose RecordDistributionStrategy is AUTO."
        )
    size = _check(stream, request)
    now = kinesis.now()
    if request.dry_run:
        stream.end_dry_run(now)
    shard, number = _put(kinesis, stream, request, size, now)
    shard.wake()
    return {"ShardId": shard.id, "SequenceNumber": number, "EncryptionType": stream.traits.encryption}


def put_records(kinesis: Kinesis, request: PutRecords) -> dict[str, Any]:
    """PutRecords. Records that exceed a shard's throughput fail one by one; the others are stored."""
    stream = _writable(kinesis, request.stream_name, request.stream_arn)
    if not 1 <= len(request.records) <= MAX_PUT_RECORDS:
        raise AwsError(
            "ValidationException",
            f"1 validation error detected: Value at 'records' failed to satisfy constraint: Member must have length between 1 "
            f"and {MAX_PUT_RECORDS}; got {len(request.records)}",
        )
    # Before anything is stored: one wrong record refuses the whole request.
    sizes = [_check(stream, entry) for entry in request.records]
    total = sum(sizes)
    if total > MAX_PUT_BYTES:
        raise invalid(f"Records size exceeds {MAX_PUT_BYTES} bytes: {total}")
    now = kinesis.now()
    if request.dry_run:
        stream.end_dry_run(now)
    results: list[dict[str, Any]] = []
    failed = 0
    written = set()
    for entry, size in zip(request.records, sizes, strict=True):
        try:
            shard, number = _put(kinesis, stream, entry, size, now)
        except AwsError as refused:
            failed += 1
            results.append({"ErrorCode": refused.code, "ErrorMessage": refused.message})
        else:
            written.add(shard)
            results.append({"SequenceNumber": number, "ShardId": shard.id})
    # Once per request, not per record, so that a reader finds all records together.
    for shard in written:
        shard.wake()
    return {"EncryptionType": stream.traits.encryption, "FailedRecordCount": failed, "Records": results}


def _writable(kinesis: Kinesis, name: str | None, arn: str | None) -> Stream:
    stream = kinesis.stream({"StreamName": name, "StreamARN": arn})
    if stream.status not in ("ACTIVE", "UPDATING"):
        stream.check_active()
    return stream


def _check(stream: Stream, entry: Entry) -> int:
    """Check a record and return the bytes of its data and key together.

    Raises AwsError if the data is not base64, the key or hash key is out of bounds, or the record is too large.
    """
    if entry.key is None:
        if not stream.traits.distributed:
            raise AwsError(
                "ValidationException",
                "1 validation error detected: Value null at 'partitionKey' failed to satisfy constraint: Member must not be null",
            )
    elif not 1 <= len(entry.key) <= 256:
        raise AwsError(
            "ValidationException",
            "1 validation error detected: Value at 'partitionKey' failed to satisfy constraint: Member must have length between "
            f"1 and 256; got {len(entry.key)}",
        )
    hash_key = entry.hash_key
    if hash_key is not None and not (hash_key.isascii() and hash_key.isdigit() and int(hash_key[:50]) <= MAX_HASH):
        raise invalid(
            f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was {hash_key}"
        )
    try:
        size = len(pybase64.b64decode(entry.data, validate=True))
    except ValueError as wrong:
        raise AwsError("SerializationException", f"Data of a record is not base64: {wrong}") from None
    size += len((entry.key or "").encode())
    if size > stream.traits.max_record_bytes:
        raise AwsError(
            "ValidationException",
            "1 validation error detected: Value at 'records.1.member.data' failed to satisfy constraint: Member must have length "
            f"less than or equal to {stream.traits.max_record_bytes}; got {size} bytes with its partition key",
        )
    return size


def _put(kinesis: Kinesis, stream: Stream, entry: Entry, size: int, now: Moment) -> tuple[Shard, str]:
    shard = stream.shard_for(entry.key, entry.hash_key)
    if kinesis.settings.write_limit:
        if shard.write_records.delay(1, now.monotonic) > 0 or shard.write_bytes.delay(size, now.monotonic) > 0:
            raise AwsError(
                "ProvisionedThroughputExceededException",
                f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {kinesis.account_id}.",
            )
        shard.write_records.take(1)
        shard.write_bytes.take(size)
    arrival = int((now.wall - stream.traits.backdated_seconds) * 1000) / 1000
    return shard, shard.append(
        stream.next_tick(now.wall),
        arrival,
        None if entry.key is None else msgspec.json.encode(entry.key),
        size,
        entry.data.encode(),
        stream.traits.encryption.encode(),
    )
