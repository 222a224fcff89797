"""One row of the lease table as a value: its changes, and its form in DynamoDB.

Attribute names and types are KCL's (its `DynamoDBLeaseSerializer`), so that KCL's tools can read our rows and we can
read its; `endpoint`, `run`, `checkpointTimestamp`, `checkpointWhole`, `readUntil` (epoch milliseconds) and
`handoverTo` are ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias

from kinesis_efo.positions import TRIM_HORIZON, Position, PositionKind, ShardKey

Item: TypeAlias = dict[str, dict[str, Any]]
"""Attributes in DynamoDB's typed form, such as `{"leaseKey": {"S": "shardId-000000000000"}}`."""

KCL_TRANSIENT: Final = (
    "checkpointOwner",
    "pendingCheckpoint",
    "pendingCheckpointSubSequenceNumber",
    "pendingCheckpointState",
)
"""What KCL keeps in a row while a hand-over or a two-phase checkpoint is under way; void once we take the lease."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """What a worker knows about a shard when it creates the row of its lease.

    Attributes:
        start: Checkpoint of a new row.
        parents: Shard ids of the parents.
        starting_hash_key: First partition-key hash of the shard, decimal.
        ending_hash_key: Last partition-key hash of the shard, decimal.
    """

    start: Position = TRIM_HORIZON
    parents: frozenset[str] = frozenset()
    starting_hash_key: str | None = None
    ending_hash_key: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A row of the lease table.

    Attributes:
        key: Lease key; see `LeaseKeys`.
        counter: Fencing token: one more with every write.
        owner: Worker id, or None where nobody owns it.
        checkpoint: How far the shard was read, or None where a KCL application stored no position: it wrote `LATEST`,
            or `AT_TIMESTAMP` whose time is only in its configuration.
        sub: Sub-sequence number within an aggregated record; 0 for a plain one.
        whole: Whether the checkpoint is behind all of its record. In KCL's rows it may be inside of an aggregate, also with
            `sub` 0, and in ours it never is.
        owner_switches: Changes of owner since the last checkpoint.
        parents: Shard ids of the parents.
        children: Shard ids of the children, once known.
        starting_hash_key: First partition-key hash, decimal.
        ending_hash_key: Last partition-key hash, decimal.
        endpoint: Where the owner serves the shard's data.
        run: Query run that the owner belongs to; None for KCL's rows.
        handover_to: Worker of the same run that asked the owner to give the lease up.
        read_until: What arrived before this time lies at or before the checkpoint, epoch seconds; None where that is not
            known. Where a shard is idle and polled, nothing else tells how far it was read.
    """

    key: str
    counter: int = 0
    owner: str | None = None
    checkpoint: Position | None = TRIM_HORIZON
    sub: int = 0
    owner_switches: int = 0
    parents: frozenset[str] = field(default=frozenset())
    children: frozenset[str] = field(default=frozenset())
    starting_hash_key: str | None = None
    ending_hash_key: str | None = None
    endpoint: str | None = None
    run: str | None = None
    handover_to: str | None = None
    read_until: float | None = None
    whole: bool = False

    @classmethod
    def new(cls, key: str, info: LeaseInfo) -> Self:
        """A row for a shard that has none yet, without an owner."""
        position, sub, whole = _stored(info.start, 0)
        return cls(
            key,
            checkpoint=position,
            sub=sub,
            whole=whole,
            parents=info.parents,
            starting_hash_key=info.starting_hash_key,
            ending_hash_key=info.ending_hash_key,
        )

    def taken(self, owner: str, run: str, endpoint: str) -> Self:
        """The row once `owner` has taken the lease."""
        switches = self.owner_switches + (self.owner not in (None, owner))
        return replace(self._next(), owner=owner, run=run, endpoint=endpoint, handover_to=None, owner_switches=switches)

    def renewed(self) -> Self:
        """The row once its owner has shown that it is alive."""
        return self._next()

    def checkpointed(self, position: Position, sub: int = 0, children: Collection[str] = ()) -> Self:
        """The row once its owner has stored a position; it renews the lease as well."""
        position, sub, whole = _stored(position, sub)
        return replace(
            self._next(),
            checkpoint=position,
            sub=sub,
            whole=whole,
            owner_switches=0,
            children=self.children | frozenset(children),
        )

    def seen(self, read_until: float | None) -> Self:
        """The row with the time up to which its checkpoint reaches, where that is known."""
        return self if read_until is None else replace(self, read_until=read_until)

    def released(self) -> Self:
        """The row once its owner has given the lease up. A hand-over that was asked for stays visible."""
        return replace(self._next(), owner=None, run=None, endpoint=None)

    def released_at(self, position: Position, sub: int = 0, children: Collection[str] = ()) -> Self:
        """The row once its owner has stored a last position and given the lease up, in one write."""
        return replace(self.checkpointed(position, sub, children), owner=None, run=None, endpoint=None)

    def asked(self, worker: str) -> Self:
        """The row once `worker` has asked for a hand-over. The counter stays: the owner's renewal must not fail."""
        return replace(self, handover_to=worker)

    def _next(self) -> Self:
        return replace(self, counter=self.counter + 1)

    def advances(self, position: Position, sub: int = 0) -> bool:
        """Whether storing this position moves the checkpoint forward."""
        if self.checkpoint is None:
            return True
        position, sub, whole = _stored(position, sub)
        if position == self.checkpoint:
            return (whole, sub) > (self.whole, self.sub)
        return position.reaches(self.checkpoint)

    @property
    def position(self) -> Position | None:
        """Where reading goes on, or None where a KCL application stored no position."""
        if self.checkpoint is None or self.checkpoint.kind is not PositionKind.AFTER or self.whole:
            return self.checkpoint
        return Position.inside(self.checkpoint.value, self.sub)

    @property
    def has_begun(self) -> bool:
        """Whether something of the shard was read: its checkpoint is not a start position any more."""
        return self.checkpoint is not None and self.checkpoint.kind in (PositionKind.AFTER, PositionKind.SHARD_END)

    def to_item(self) -> Item:
        """The row as DynamoDB attributes."""
        item: Item = {
            "leaseKey": {"S": self.key},
            "leaseCounter": {"N": str(self.counter)},
            "checkpoint": {"S": _checkpoint_text(self.checkpoint)},
            "checkpointSubSequenceNumber": {"N": str(self.sub)},
            "ownerSwitchesSinceCheckpoint": {"N": str(self.owner_switches)},
        }
        if self.checkpoint is not None and self.checkpoint.kind is PositionKind.AT_TIMESTAMP:
            item["checkpointTimestamp"] = {"N": str(self.checkpoint.value)}
        if self.whole:
            # Names the checkpoint it belongs to: a KCL application that takes the row over keeps attributes it does not know.
            item["checkpointWhole"] = item["checkpoint"]
        if self.read_until is not None:
            item["readUntil"] = {"N": str(round(self.read_until * 1000))}
        for name, text in (
            ("leaseOwner", self.owner),
            ("startingHashKey", self.starting_hash_key),
            ("endingHashKey", self.ending_hash_key),
            ("endpoint", self.endpoint),
            ("run", self.run),
            ("handoverTo", self.handover_to),
        ):
            if text is not None:
                item[name] = {"S": text}
        for name, shards in (("parentShardId", self.parents), ("childShardIds", self.children)):
            if shards:  # DynamoDB has no empty sets
                item[name] = {"SS": sorted(shards)}
        return item

    @classmethod
    def from_item(cls, item: Mapping[str, Mapping[str, Any]]) -> Self | None:
        """Read a row of ours or of KCL's.

        Returns:
            The lease, or None for rows that are no leases (KCL 3.5 keeps its leader, workers and streams in the same
            table and marks them with `entityType`).

        Raises:
            ValueError: An attribute has the wrong type or value; the message names row and attribute.
        """
        if _read(item, "entityType", "S", "LEASE") != "LEASE":
            return None
        return cls(
            key=_read(item, "leaseKey", "S"),
            counter=_number(item, "leaseCounter"),
            owner=_read(item, "leaseOwner", "S", None),
            checkpoint=_read_checkpoint(item),
            sub=_number(item, "checkpointSubSequenceNumber", 0),
            owner_switches=_number(item, "ownerSwitchesSinceCheckpoint", 0),
            parents=frozenset(_read(item, "parentShardId", "SS", ())),
            children=frozenset(_read(item, "childShardIds", "SS", ())),
            starting_hash_key=_read(item, "startingHashKey", "S", None),
            ending_hash_key=_read(item, "endingHashKey", "S", None),
            endpoint=_read(item, "endpoint", "S", None),
            run=_read(item, "run", "S", None),
            handover_to=_read(item, "handoverTo", "S", None),
            read_until=_number(item, "readUntil") / 1000 if "readUntil" in item else None,
            whole=_read(item, "checkpointWhole", "S", None) == _read(item, "checkpoint", "S", "LATEST"),
        )


_REQUIRED: Final = object()


def _read(item: Mapping[str, Mapping[str, Any]], name: str, kind: str, default: Any = _REQUIRED) -> Any:
    attribute = item.get(name)
    if attribute is None or "NULL" in attribute:
        if default is _REQUIRED:
            raise _fault(item, f"has no attribute {name!r}")
        return default
    if kind not in attribute:
        raise _fault(item, f"has attribute {name!r} = {dict(attribute)!r}, expected type {kind}")
    return attribute[kind]


def _number(item: Mapping[str, Mapping[str, Any]], name: str, default: Any = _REQUIRED) -> int:
    value = _read(item, name, "N", default)
    try:
        return int(value)
    except ValueError:
        raise _fault(item, f"has attribute {name!r} = {value!r}, expected a whole number") from None


def _fault(item: Mapping[str, Mapping[str, Any]], what: str) -> ValueError:
    return ValueError(f"lease row {item.get('leaseKey', {}).get('S', '?')!r} {what}")


def _checkpoint_text(position: Position | None) -> str:
    if position is None:
        return "LATEST"
    return str(position.value) if position.kind is PositionKind.AFTER else position.kind.value


def _stored(position: Position, sub: int) -> tuple[Position, int, bool]:
    """A position in the form of a row: checkpoint, sub-sequence number, and whether it is behind all of its record."""
    if position.kind is PositionKind.INSIDE:
        return Position.after(position.value), position.sub, False
    return position, sub, position.kind is PositionKind.AFTER and not sub


def _read_checkpoint(item: Mapping[str, Mapping[str, Any]]) -> Position | None:
    text = _read(item, "checkpoint", "S", "LATEST")
    match text:
        case "LATEST":
            return None
        case "TRIM_HORIZON" | "SHARD_END":
            return Position(PositionKind[text])
        case "AT_TIMESTAMP":
            if "checkpointTimestamp" not in item:
                return None
            return Position.at_timestamp(_number(item, "checkpointTimestamp"))
    try:
        return Position.parse(f"AFTER:{text}")
    except ValueError:
        raise _fault(item, f"has attribute 'checkpoint' = {text!r}, expected a sequence number") from None


class LeaseKeys:
    """Translates between shards and lease keys of one application.

    The shard id alone where the application reads one stream, `<stream name>:<shard id>` where it reads several.
    KCL's multi-stream keys, `<account>:<stream>:<epoch>:<shard id>`, are understood when reading.

    Args:
        streams: Logical stream name to the stream's name in Kinesis, for all streams of the application.

    >>> keys = LeaseKeys({"orders": "dev-orders", "clicks": "dev-clicks"})
    >>> keys.encode(ShardKey("orders", "shardId-000000000000"))
    'orders:shardId-000000000000'
    >>> keys.decode("123456789012:dev-clicks:1700000000:shardId-000000000007")
    ShardKey(stream='clicks', shard='shardId-000000000007')
    """

    def __init__(self, streams: Mapping[str, str]) -> None:
        if not streams:
            raise ValueError("an application reads at least one stream")
        self._logical = {kinesis: logical for logical, kinesis in streams.items()}
        self._names = frozenset(streams)
        self._only = next(iter(streams)) if len(streams) == 1 else None

    def encode(self, shard: ShardKey) -> str:
        """The lease key of a shard.

        Raises:
            ValueError: The application does not read that stream.
        """
        if shard.stream not in self._names:
            raise ValueError(f"{shard.stream!r} is not a stream of this application: {', '.join(sorted(self._names))}")
        return shard.shard if self._only else f"{shard.stream}:{shard.shard}"

    def decode(self, key: str) -> ShardKey | None:
        """The shard of a lease key, or None where it is of a stream that this application does not read."""
        match key.split(":"):
            case [shard] if self._only:
                return ShardKey(self._only, shard)
            case [stream, shard] if stream in self._names:
                return ShardKey(stream, shard)
            case [_, name, _, shard] if name in self._logical:
                return ShardKey(self._logical[name], shard)
        return None


def sibling(key: str, shard_id: str) -> str:
    """The lease key of another shard of the same stream.

    >>> sibling("orders:shardId-000000000000", "shardId-000000000001")
    'orders:shardId-000000000001'
    """
    prefix, colon, _ = key.rpartition(":")
    return f"{prefix}{colon}{shard_id}"
