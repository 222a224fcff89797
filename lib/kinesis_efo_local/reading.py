"""Implements GetShardIterator and GetRecords, and finds the record at which a starting position begins."""

from __future__ import annotations

from typing import Any

import msgspec

from .errors import AwsError, invalid, throughput_exceeded
from .shards import Shard
from .state import Kinesis
from .streams import Stream
from .tokens import open_token, seal

MAX_GET_BYTES = 10 * 1024 * 1024
MAX_GET_RECORDS = 10_000


def cursor_for(stream: Stream, shard: Shard, position: dict[str, Any], now: float) -> int:
    """The cursor in a shard for a starting position (`Type`, `SequenceNumber`, `Timestamp`).

    Raises AwsError `InvalidArgumentException` for a position that the shard cannot have.
    """
    kind = position.get("Type")
    if kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        number = position.get("SequenceNumber")
        if number is None:
            raise invalid(f"Must specify the sequence number for starting position type {kind}")
        return shard.cursor_at(stream.parse_number(number, shard), after=kind == "AFTER_SEQUENCE_NUMBER")
    if kind == "AT_TIMESTAMP":
        at = position.get("Timestamp")
        if not isinstance(at, int | float) or isinstance(at, bool):
            raise invalid("Must specify the timestamp (epoch seconds) for starting position type AT_TIMESTAMP")
        if at > now + 1:
            raise invalid(f"The timestamp {at} is in the future. Current timestamp: {now:.3f}")
        return shard.cursor_at_time(at)
    if kind == "TRIM_HORIZON":
        return shard.oldest
    if kind == "LATEST":
        return shard.tip
    raise invalid(f"Starting position type {kind!r} is not known")


def get_shard_iterator(kinesis: Kinesis, params: dict[str, Any]) -> dict[str, Any]:
    """Handle a GetShardIterator request."""
    stream = kinesis.stream(params)
    shard = stream.shard(params["ShardId"])
    position = {
        "Type": params["ShardIteratorType"],
        "SequenceNumber": params.get("StartingSequenceNumber"),
        "Timestamp": params.get("Timestamp"),
    }
    cursor = cursor_for(stream, shard, position, kinesis.now().wall)
    if params.get("DryRun"):
        stream.end_dry_run(kinesis.now())
    return {"ShardIterator": _iterator(kinesis, stream, shard, cursor, next(kinesis.readers))}


def get_records(kinesis: Kinesis, params: dict[str, Any]) -> bytes:
    """Handle a GetRecords request. Returns encoded JSON, because the records are stored as JSON."""
    now = kinesis.now()
    iterator = open_token(params["ShardIterator"])
    if iterator is None or set(iterator) != {"stream", "created", "shard", "cursor", "issued", "reader"}:
        raise invalid("Invalid ShardIterator.")
    stream = kinesis.stream({"StreamName": iterator["stream"]})
    if stream.created_at != iterator["created"]:
        raise invalid("Invalid ShardIterator: it was made for an earlier stream of the same name.")
    if now.wall - iterator["issued"] > kinesis.settings.iterator_seconds:
        raise AwsError(
            "ExpiredIteratorException",
            f"Iterator expired. The iterator was created at time {iterator['issued']:.3f} while right now it is {now.wall:.3f} "
            f"which is further in the future than the tolerated delay of {kinesis.settings.iterator_seconds * 1000:.0f} "
            "milliseconds.",
        )
    shard = stream.shard(iterator["shard"])
    if params.get("DryRun"):
        stream.end_dry_run(now)
    limited = kinesis.settings.read_limit
    if limited and (shard.read_calls.delay(1, now.monotonic) > 0 or shard.read_bytes.delay(1, now.monotonic) > 0):
        raise throughput_exceeded(
            f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {kinesis.account_id}."
        )
    cursor = max(iterator["cursor"], shard.oldest)
    page = shard.page(cursor, min(params.get("Limit") or MAX_GET_RECORDS, MAX_GET_RECORDS), MAX_GET_BYTES)
    records, size = b"", 0
    wrong = kinesis.wrong
    hidden = page is not None and wrong.hides((stream.arn, shard.id, iterator["reader"]))
    if page is not None and not hidden:
        records, size, cursor = b",".join(page.records), page.size, page.after
    if limited:
        shard.read_calls.take(1)
        shard.read_bytes.take(size)
    behind = 0 if hidden else wrong.lag(shard.behind_millis(cursor, now.wall))
    rest: dict[str, Any] = {"MillisBehindLatest": behind}
    if shard.closed and cursor >= shard.tip:
        rest["NextShardIterator"] = "" if wrong.writes_empty else None
        rest["ChildShards"] = shard.describe_children()
    else:
        rest["NextShardIterator"] = _iterator(kinesis, stream, shard, cursor, iterator["reader"])
        if wrong.writes_empty:
            rest["ChildShards"] = []
    return b'{"Records":[%b],%b' % (records, msgspec.json.encode(rest)[1:])


def _iterator(kinesis: Kinesis, stream: Stream, shard: Shard, cursor: int, reader: int) -> str:
    """Create a shard iterator. `reader` identifies the GetShardIterator call from which the iterator originates."""
    return seal(
        {
            "stream": stream.name,
            "created": stream.created_at,
            "shard": shard.id,
            "cursor": cursor,
            "issued": kinesis.now().wall,
            "reader": reader,
        }
    )
