"""PutRecord and PutRecords, the server's hot path: requests are decoded into structs, and data stays in base64."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pybase64

from .errors import AwsError, invalid
from .shards import MAX_HASH, Shard
from .state import Kinesis
from .streams import Moment, Stream
from .validation import check

MAX_PUT_RECORDS = 500
MAX_PUT_BYTES = 10 * 1024 * 1024
_HASH_KEY = re.compile(r"0|([1-9]\d{0,38})", re.ASCII)


class Entry(msgspec.Struct, gc=False):
    """A record to put, with its data in base64."""

    data: str | None = msgspec.field(name="Data", default=None)
    key: str | None = msgspec.field(name="PartitionKey", default=None)
    hash_key: str | None = msgspec.field(name="ExplicitHashKey", default=None)


class PutRecords(msgspec.Struct):
    """A PutRecords request."""

    records: list[Entry] = msgspec.field(name="Records")
    stream_name: str | None = msgspec.field(name="StreamName", default=None)
    stream_arn: str | None = msgspec.field(name="StreamARN", default=None)
    stream_id: str | None = msgspec.field(name="StreamId", default=None)
    dry_run: bool | None = msgspec.field(name="DryRun", default=None)


class PutRecord(Entry):
    """A PutRecord request."""

    stream_name: str | None = msgspec.field(name="StreamName", default=None)
    stream_arn: str | None = msgspec.field(name="StreamARN", default=None)
    stream_id: str | None = msgspec.field(name="StreamId", default=None)
    dry_run: bool | None = msgspec.field(name="DryRun", default=None)
    after: str | None = msgspec.field(name="SequenceNumberForOrdering", default=None)


def put_record(kinesis: Kinesis, request: PutRecord) -> dict[str, Any]:
    """Handle a PutRecord request."""
    ordering = {} if request.after is None else {"SequenceNumberForOrdering": request.after}
    _check_names("PutRecord", request, {"Data": "", "PartitionKey": "k", **ordering})
    size = _check(request, "")
    stream = _writable(kinesis, request.stream_name, request.stream_arn)
    if request.after is not None:
        if stream.traits.distributed:
            raise invalid(
                f"SequenceNumberForOrdering must not be provided for stream {stream.name}, whose RecordDistributionStrategy is AUTO."
            )
        stream.check_issued(request.after)
    _check_for(stream, request, size, "")
    now = kinesis.now()
    if request.dry_run:
        stream.end_dry_run(now)
    shard, number = _put(kinesis, stream, request, size, now)
    shard.wake()
    return {"ShardId": shard.id, "SequenceNumber": number, "EncryptionType": stream.traits.encryption}


def put_records(kinesis: Kinesis, request: PutRecords) -> dict[str, Any]:
    """Handle a PutRecords request. Records that exceed a shard's throughput fail individually; the others are stored."""
    _check_names("PutRecords", request, {"Records": [{"Data": "", "PartitionKey": "k"}]})
    if not 1 <= len(request.records) <= MAX_PUT_RECORDS:
        raise _broken("records", f"have length between 1 and {MAX_PUT_RECORDS}; got {len(request.records)}")
    # Check all records before storing any: one invalid record fails the whole request.
    paths = [f"records.{number}.member." for number in range(1, len(request.records) + 1)]
    sizes = list(map(_check, request.records, paths))
    stream = _writable(kinesis, request.stream_name, request.stream_arn)
    for entry, size, path in zip(request.records, sizes, paths, strict=True):
        _check_for(stream, entry, size, path)
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
    # Wake readers once per request, not per record, so that they find all records together.
    for shard in written:
        shard.wake()
    return {"EncryptionType": stream.traits.encryption, "FailedRecordCount": failed, "Records": results}


def _writable(kinesis: Kinesis, name: str | None, arn: str | None) -> Stream:
    stream = kinesis.stream({"StreamName": name, "StreamARN": arn})
    if stream.status not in ("ACTIVE", "UPDATING"):
        stream.check_active()
    return stream


def _check_names(operation: str, request: PutRecord | PutRecords, rest: dict[str, Any]) -> None:
    names = {"StreamName": request.stream_name, "StreamARN": request.stream_arn, "StreamId": request.stream_id}
    check(operation, {**{name: value for name, value in names.items() if value is not None}, **rest})


def _check(entry: Entry, path: str) -> int:
    """Check a record against the constraints of the service model, and return the total bytes of its data and key.

    Raises AwsError if a constraint is violated, or the data is not base64. `path` is put before member names in error messages.
    """
    if entry.data is None:
        raise _broken(f"{path}data", "not be null")
    if entry.key is not None and not 1 <= len(entry.key) <= 256:
        raise _broken(f"{path}partitionKey", f"have length between 1 and 256; got {len(entry.key)}")
    if entry.hash_key is not None and not _HASH_KEY.fullmatch(entry.hash_key):
        pattern = f"satisfy regular expression pattern: {_HASH_KEY.pattern}"
        raise _broken(f"{path}explicitHashKey", f"{pattern}; got {entry.hash_key!r}")
    try:
        size = len(pybase64.b64decode(entry.data, validate=True))
    except ValueError as wrong:
        raise AwsError("SerializationException", f"Data of a record is not base64: {wrong}") from None
    if size > MAX_PUT_BYTES:
        raise _broken(f"{path}data", f"have length less than or equal to {MAX_PUT_BYTES}; got {size}")
    return size + len((entry.key or "").encode())


def _check_for(stream: Stream, entry: Entry, size: int, path: str) -> None:
    """Check a record against its stream's settings. Raises AwsError for a missing key, an invalid hash key, or a `size` above the limit."""
    if entry.key is None and not stream.traits.distributed:
        raise _broken(f"{path}partitionKey", "not be null")
    if entry.hash_key is not None and int(entry.hash_key) > MAX_HASH:
        raise invalid(
            f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. Specified value was {entry.hash_key}"
        )
    most = stream.traits.max_record_bytes
    if size > most:
        raise _broken(
            f"{path}data", f"have length less than or equal to {most}; got {size} bytes with its partition key"
        )


def _broken(path: str, constraint: str) -> AwsError:
    return AwsError(
        "ValidationException",
        f"1 validation error detected: Value at '{path}' failed to satisfy constraint: Member must {constraint}",
    )


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
        (entry.data or "").encode(),
        stream.traits.encryption.encode(),
    )
