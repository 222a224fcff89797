"""Reads and writes the attributes of a lease table's row in DynamoDB's typed form. Errors name row and attribute.

A position is stored in KCL's `checkpoint` and `checkpointSubSequenceNumber`, and in this library's `continuation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.leases.reached import CheckpointMark
from kinesis_efo.leases.run_lag import Lag
from kinesis_efo.marks import Mark
from kinesis_efo.positions import Position, PositionKind

Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]

_REQUIRED: Final = object()


def read(item: Attributes, name: str, kind: str, default: Any = _REQUIRED) -> Any:
    """Return the value of an attribute of a type (`S`, `SS`)."""
    attribute = item.get(name)
    if attribute is None or "NULL" in attribute:
        if default is _REQUIRED:
            raise fault(item, f"has no attribute {name!r}")
        return default
    if kind not in attribute:
        raise fault(item, f"has attribute {name!r} = {dict(attribute)!r}, expected type {kind}")
    return attribute[kind]


def number(item: Attributes, name: str, default: Any = _REQUIRED) -> int:
    """Return the value of an attribute that is a whole number."""
    value = read(item, name, "N", default)
    try:
        return int(value)
    except ValueError:
        raise fault(item, f"has attribute {name!r} = {value!r}, expected a whole number") from None


def fault(item: Attributes, what: str) -> ValueError:
    """Make the error for a wrong attribute."""
    return ValueError(f"lease row {item.get('leaseKey', {}).get('S', '?')!r} {what}")


def checkpoint_text(position: Position | None) -> str:
    """Return the text of a checkpoint as the KCL writes it."""
    if position is None:
        return "LATEST"
    return str(position.value) if position.kind is PositionKind.AFTER else position.kind.value


def stored(position: Position) -> tuple[Position, int, int | None]:
    """Split a position into checkpoint, sub-sequence number, and continuation."""
    if position.kind is PositionKind.INSIDE:
        return Position.after(position.value), position.sub, None
    return position, 0, position.value if position.kind is PositionKind.AFTER else None


def read_continuation(item: Attributes) -> int | None:
    """Read the number up to which the shard was read; None if only the checkpoint says so."""
    checkpoint = read(item, "checkpoint", "S", "LATEST")
    text = read(item, "continuation", "S", None)
    if text is None:
        return None
    if not text.isdecimal():
        raise fault(item, f"has attribute 'continuation' = {text!r}, expected a sequence number")
    # A KCL application moves the checkpoint of a row that it takes over, and keeps unknown attributes as they are.
    moved_on = checkpoint == "SHARD_END" or (checkpoint.isdecimal() and int(checkpoint) > int(text))
    return None if moved_on else int(text)


def read_checkpoint(item: Attributes) -> Position | None:
    """Read the checkpoint; None if a KCL application stored no position."""
    text = read(item, "checkpoint", "S", "LATEST")
    match text:
        case "LATEST":
            return None
        case "TRIM_HORIZON" | "SHARD_END":
            return Position(PositionKind[text])
        case "AT_TIMESTAMP":
            if "checkpointTimestamp" not in item:
                return None
            return Position.at_timestamp(number(item, "checkpointTimestamp"))
    try:
        return Position.parse(f"AFTER:{text}")
    except ValueError:
        raise fault(item, f"has attribute 'checkpoint' = {text!r}, expected a sequence number") from None


def of_lag(lag: Lag) -> dict[str, dict[str, Any]]:
    """Make the attribute with the lag of a run."""
    fields = {"shards": {"N": str(lag.shards)}, "bufferedBytes": {"N": str(lag.buffered)}}
    fields |= {"records": {"N": str(lag.records)}} if lag.records else {}
    fields |= {"at": {"N": str(lag.at)}} if lag.at is not None else {}
    if lag.millis_behind is not None and lag.shard is not None:
        fields |= {"millisBehind": {"N": str(lag.millis_behind)}, "shardId": {"S": lag.shard}}
    return {"lag": {"M": fields}}


def read_lag(item: Attributes) -> Lag | None:
    """Read the lag of a run; None if its row has none."""
    fields = read(item, "lag", "M", None)
    if fields is None:
        return None
    named = {**fields, "leaseKey": item.get("leaseKey", {})}  # for messages
    behind = number(named, "millisBehind") if "millisBehind" in fields else None
    return Lag(
        number(named, "shards"),
        number(named, "bufferedBytes"),
        behind,
        read(named, "shardId", "S", None),
        number(named, "records", 0),
        number(named, "at") if "at" in fields else None,
    )


def of_marks(marks: tuple[CheckpointMark, ...]) -> dict[str, dict[str, Any]]:
    """Make the attribute with the marks of checkpoints."""
    fields = {
        each.mark.checkpoint: {"M": {"moved": {"N": str(each.mark.moved)}, "at": {"N": str(each.at)}}} for each in marks
    }
    return {"marks": {"M": fields}}


def read_marks(item: Attributes) -> tuple[CheckpointMark, ...]:
    """Read the marks of checkpoints, the newest first; empty if the row has none."""
    found = []
    for checkpoint, each in read(item, "marks", "M", {}).items():
        named = {**each.get("M", {}), "leaseKey": item.get("leaseKey", {})}  # for messages
        found.append(CheckpointMark(Mark(checkpoint, number(named, "moved")), number(named, "at")))
    return tuple(sorted(found, key=lambda each: each.at, reverse=True))


def of_stream(stream: StreamIdentity) -> dict[str, dict[str, str]]:
    """Make the attributes that identify the stream."""
    created = {} if stream.created is None else {"streamCreated": {"N": str(stream.created)}}
    return {"streamArn": {"S": stream.arn}, **created}


def read_stream(item: Attributes) -> StreamIdentity | None:
    """Read which stream was read; None if the row does not say."""
    arn = read(item, "streamArn", "S", None)
    if arn is None or "streamCreated" not in item:
        return None if arn is None else StreamIdentity(arn)
    created = number(item, "streamCreated")
    if not 0 <= created < 10**11:
        raise fault(item, f"has attribute 'streamCreated' = '{created}', expected epoch seconds")
    return StreamIdentity(arn, created)
