"""Converts the attributes of lease table rows to and from DynamoDB's typed form.

A position is stored in the KCL's attributes `checkpoint` and `checkpointSubSequenceNumber`, and in this library's attribute `continuation`.
Error messages name the row's key and the attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.positions import Mark, Position, PositionKind

Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]

_REQUIRED: Final = object()
_MOST: Final = 10**38
"""Upper bound of numbers: DynamoDB numbers have at most 38 digits."""
_MOST_TIME: Final = 10**14
"""Upper bound of times in epoch milliseconds: the year 5138. `datetime` cannot represent times after the year 9999."""


class CheckpointMark(NamedTuple):
    """The newest mark (`Mark`) that a run has recorded for a checkpoint."""

    mark: Mark
    at: int  # When the mark was recorded, in epoch milliseconds


def read(item: Attributes, name: str, kind: str, default: Any = _REQUIRED) -> Any:
    """Return the value of an attribute with the DynamoDB type `kind`, such as `S`. If missing, return `default` or raise ValueError."""
    attribute = item.get(name)
    if attribute is None or "NULL" in attribute:
        if default is _REQUIRED:
            raise fault(item, f"has no attribute {name!r}")
        return default
    if kind not in attribute:
        raise fault(item, f"has attribute {name!r} = {dict(attribute)!r}, expected type {kind}")
    return attribute[kind]


def number(item: Attributes, name: str, default: Any = _REQUIRED) -> int:
    """Return the value of an attribute that must be a whole number."""
    value = read(item, name, "N", default)
    try:
        if abs(found := int(value)) < _MOST:
            return found
    except (TypeError, ValueError):
        pass
    raise fault(item, f"has attribute {name!r} = {value!r}, expected a whole number")


def optional_number(item: Attributes, name: str) -> int | None:
    """Return the value of an attribute that must be a whole number; None if the row does not have the attribute."""
    return None if read(item, name, "N", None) is None else number(item, name)


def milliseconds(item: Attributes, name: str) -> int:
    """Return the value of a time attribute, in epoch milliseconds."""
    value = number(item, name)
    if not 0 <= value < _MOST_TIME:
        raise fault(item, f"has attribute {name!r} = {value}, expected a time in epoch milliseconds")
    return value


def seconds(item: Attributes, name: str) -> float | None:
    """Return the value of a time attribute, in epoch seconds; None if the row does not have the attribute."""
    return None if read(item, name, "N", None) is None else milliseconds(item, name) / 1000


def fault(item: Attributes, what: str) -> ValueError:
    return ValueError(f"lease row {item.get('leaseKey', {}).get('S', '?')!r} {what}")


def stored(position: Position) -> tuple[Position, int, int | None]:
    """Split a position into the values of `checkpoint`, `checkpointSubSequenceNumber` and `continuation`."""
    if position.kind is PositionKind.INSIDE:
        return Position.after(position.value), position.sub, None
    return position, 0, position.value if position.kind is PositionKind.AFTER else None


def read_continuation(item: Attributes) -> int | None:
    """Return the sequence number up to which the shard was read; None if `continuation` is missing or behind `checkpoint`."""
    checkpoint = read(item, "checkpoint", "S", "LATEST")
    text = read(item, "continuation", "S", None)
    if text is None:
        return None
    if not text.isdecimal():
        raise fault(item, f"has attribute 'continuation' = {text!r}, expected a sequence number")
    # Ignore an outdated continuation: a KCL application that acquires a row moves its checkpoint but leaves unknown attributes unchanged.
    moved_on = checkpoint == "SHARD_END" or (checkpoint.isdecimal() and int(checkpoint) > int(text))
    return None if moved_on else int(text)


def read_checkpoint(item: Attributes) -> Position | None:
    """Return the position in `checkpoint`; None for a KCL application's `LATEST`, or `AT_TIMESTAMP` without a time."""
    text = read(item, "checkpoint", "S", "LATEST")
    if text in ("TRIM_HORIZON", "SHARD_END"):
        return Position(PositionKind[text])
    if text == "AT_TIMESTAMP" and read(item, "checkpointTimestamp", "N", None) is not None:
        return Position.at_timestamp(milliseconds(item, "checkpointTimestamp"))
    if text in ("AT_TIMESTAMP", "LATEST"):
        return None
    try:
        return Position.parse(f"AFTER:{text}")
    except ValueError:
        raise fault(item, f"has attribute 'checkpoint' = {text!r}, expected a sequence number") from None


def of_marks(marks: tuple[CheckpointMark, ...]) -> dict[str, dict[str, Any]]:
    """Convert checkpoint marks to the attribute `marks`."""
    fields = {
        each.mark.checkpoint: {"M": {"moved": {"N": str(each.mark.moved)}, "at": {"N": str(each.at)}}} for each in marks
    }
    return {"marks": {"M": fields}}


def read_marks(item: Attributes) -> tuple[CheckpointMark, ...]:
    """Return the row's checkpoint marks, newest first; empty if the row has none."""
    found = []
    for checkpoint, each in read(item, "marks", "M", {}).items():
        named = {**each.get("M", {}), "leaseKey": item.get("leaseKey", {})}  # the key is for error messages
        found.append(CheckpointMark(Mark(checkpoint, number(named, "moved")), milliseconds(named, "at")))
    return tuple(sorted(found, key=lambda each: each.at, reverse=True))


def read_stream(item: Attributes) -> StreamIdentity | None:
    """Return the identity of the stream that the row belongs to; None if the row does not contain it."""
    arn = read(item, "streamArn", "S", None)
    if arn is None:
        return None
    created = optional_number(item, "streamCreated")
    if created is not None and not 0 <= created < 10**11:
        raise fault(item, f"has attribute 'streamCreated' = '{created}', expected epoch seconds")
    return StreamIdentity(arn, created)
