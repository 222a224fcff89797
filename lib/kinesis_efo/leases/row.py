"""Represents a lease table row as an immutable value, and converts it to and from DynamoDB attributes.

A row is either a run's lease on a stream (key `#run:<stream>`) or the checkpoint of a shard (key `<stream>:<shard id>`). Attribute names
and types match the KCL's `DynamoDBLeaseSerializer`, so that a KCL application's rows can be read. This library has additional attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias

from kinesis_efo.arns import StreamIdentity
from kinesis_efo.decisions.lineage import Shard
from kinesis_efo.leases import attributes
from kinesis_efo.leases.attributes import CheckpointMark
from kinesis_efo.leases.keys import RUN_PREFIX
from kinesis_efo.leases.lag import Lag, of_lag, read_lag
from kinesis_efo.positions import TRIM_HORIZON, LastRecord, Position, PositionKind
from kinesis_efo.records.distribution import Distribution

Item: TypeAlias = dict[str, dict[str, Any]]
"""Attributes in DynamoDB's typed form, such as `{"leaseKey": {"S": "shardId-000000000000"}}`."""

OBSOLETE: Final = (
    "checkpointOwner", "pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState"
)  # fmt: skip
"""Attributes that the KCL leaves in a shard's row after a lease handoff or a two-phase checkpoint. A run removes them."""

_TEXTS: Final = {
    "owner": "leaseOwner", "starting_hash_key": "startingHashKey", "ending_hash_key": "endingHashKey",
    "endpoint": "endpoint", "fetcher": "fetcher", "status": "status",
}  # fmt: skip
_SETS: Final = {"parents": "parentShardId", "children": "childShardIds"}
_OURS: Final = frozenset({"epoch", "endpoint", "continuation", "checkpointTimestamp", "readUntil", "streamArn"})


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """The contents of a new row for a shard."""

    start: Position = TRIM_HORIZON
    parents: frozenset[str] = frozenset()  # Shard ids of the parents
    starting_hash_key: str | None = None  # Decimal digits, as in Kinesis' API
    ending_hash_key: str | None = None

    @classmethod
    def of(cls, shard: Shard, start: Position = TRIM_HORIZON) -> Self:
        """Return the contents of the row for a shard that Kinesis has listed or announced."""
        return cls(start, frozenset(shard.parents), *map(str, shard.hash_range))

    @property
    def is_known(self) -> bool:
        """Whether Kinesis has listed or announced the shard. If not, its hash keys are unknown."""
        return self.starting_hash_key is not None


@dataclass(frozen=True, slots=True)
class Lease:
    """A row of the lease table: a run's lease on a stream, or the checkpoint of a shard. `docs/lease-table.md` has all attributes.

    Attributes:
        counter: Increases by one with every write, so that a write fails if another writer was first.
        owner: The owner's name; None without an owner. Rows of shards have owners only if a KCL application wrote them.
        checkpoint: The position of the last record that was read, if its sequence number is known, or the start position. None if a KCL
            application stored `LATEST`, or `AT_TIMESTAMP` with the time only in its configuration.
        sub: Sub-sequence number of the last user record that was read from an aggregate; 0 for a plain record.
        continuation: Sequence number up to which the shard was read. It may be higher than the last record's number: Kinesis also sends
            continuations for idle shards. None in rows of a KCL application, whose checkpoint may be inside an aggregate.
        epoch: Increases with every run that acquires the lease. In a shard's row, the epoch of the run that wrote the row.
        stream: The identity of the row's stream. None in rows of a KCL application, and in rows that were edited by hand.
        written: When a run wrote a shard's row, in epoch seconds of the run's clock; None if unknown.
        also: Names and values of text attributes that only rows for a KCL application have.
        ours: Whether this library certainly wrote the row, rather than a KCL application.
        read_until: Low watermark in epoch seconds: records that arrived before it are at or before the row's position. None if unknown.
            For an idle polled shard, only this attribute shows how far it was read.
        read_since: At `TRIM_HORIZON`, the arrival time of the oldest records that `read_until` covers; None if it covers all records.
    """

    key: str
    counter: int = 0
    owner: str | None = None
    checkpoint: Position | None = TRIM_HORIZON
    sub: int = 0
    owner_switches: int = 0
    parents: frozenset[str] = frozenset()
    children: frozenset[str] = frozenset()
    starting_hash_key: str | None = None
    ending_hash_key: str | None = None
    epoch: int = 0
    endpoint: str | None = None
    read_until: float | None = None
    continuation: int | None = None
    stream: StreamIdentity | None = None
    fetcher: str | None = None
    lag: Lag | None = None
    status: str | None = None
    distributed: bool = False
    marks: tuple[CheckpointMark, ...] = ()
    written: float | None = field(default=None, compare=False)
    also: tuple[tuple[str, str], ...] = ()
    ours: bool = field(default=True, compare=False)
    read_since: float | None = None

    @classmethod
    def new(cls, key: str, info: LeaseInfo) -> Self:
        """Create the first row of a shard, without an owner."""
        checkpoint, sub, continuation = attributes.stored(info.start)
        return cls(key, checkpoint=checkpoint, sub=sub, continuation=continuation).completed(info)

    def completed(self, info: LeaseInfo) -> Self:
        """Return the row with the parents and hash keys from `info`, if known. The row's old values may belong to an earlier stream."""
        if not info.is_known:
            return replace(self, parents=self.parents | info.parents)
        return replace(
            self,
            parents=info.parents,
            starting_hash_key=info.starting_hash_key,
            ending_hash_key=info.ending_hash_key,
        )

    def taken(self, owner: str, endpoint: str, epoch: int, status: str | None = None) -> Self:
        """Return the row after `owner` has acquired the lease."""
        return replace(self._next(), owner=owner, endpoint=endpoint, epoch=epoch, status=status, lag=None)

    def renewed(self, lag: Lag | None = None) -> Self:
        """Return the row after a renewal, with the run's lag."""
        return replace(self._next(), lag=lag)

    def checkpointed(
        self, position: Position, children: Collection[str] = (), record: LastRecord | None = None
    ) -> Self:
        """Return the row, without an owner, after the shard was processed up to `position`.

        Args:
            position: Up to where the shard is processed.
            children: The shard ids of the children, if the shard has ended.
            record: The last record up to `position`; None if unknown, or if there was none since the row was written.
        """
        checkpoint, sub, continuation = attributes.stored(position)
        if continuation is not None and record is not None:
            checkpoint, sub = Position.after(record.number), record.sub
        elif continuation is not None and self.checkpoint is not None:
            checkpoint, sub = self.checkpoint, self.sub
        # Discard the low watermark of a time: the sequence number that replaces it may be older, from a query that is behind.
        before = self.position
        until = None if before is not None and before.kind is PositionKind.AT_TIMESTAMP else self.read_until
        row = replace(self.released(), checkpoint=checkpoint, sub=sub, continuation=continuation, read_until=until)
        return replace(row, owner_switches=0, children=self.children | frozenset(children))

    def released(self) -> Self:
        """Return the row after its owner released the lease."""
        return replace(self._next(), owner=None, endpoint=None, status=None, lag=None)

    def _next(self) -> Self:
        return replace(self, counter=self.counter + 1)

    def advances(self, position: Position) -> bool:
        """Whether storing this position moves the row forward."""
        current = self.position
        if current is None:
            return True
        if current.kind is PositionKind.INSIDE and position.kind is PositionKind.AFTER:
            return position.value >= current.value
        return position != current and position.reaches(current)

    def is_of_another(self, stream: StreamIdentity) -> bool:
        """Whether the row certainly belongs to another stream, such as a deleted stream with the same name."""
        return self.stream is not None and self.stream.differs(stream)

    @property
    def is_run(self) -> bool:
        """Whether this is a run's lease on a stream."""
        return self.key.startswith(RUN_PREFIX)

    @property
    def position(self) -> Position | None:
        """The position after which reading continues; None if a KCL application stored `LATEST`, or `AT_TIMESTAMP` without a time."""
        if self.continuation is not None:
            return Position.after(self.continuation)
        if self.checkpoint is None or self.checkpoint.kind is not PositionKind.AFTER:
            return self.checkpoint
        return Position.inside(self.checkpoint.value, self.sub)

    @property
    def reached(self) -> Position | None:
        """How far the shard was read, as shown by tools. An aggregate that a KCL application has read in part counts as read."""
        return self.checkpoint if self.continuation is None else Position.after(self.continuation)

    def read_until_at(self, position: Position) -> float | None:
        """Return `read_until` if it is certainly a low watermark of `position`; otherwise None."""
        at = self.position
        if at is None or position == TRIM_HORIZON != at:
            return None
        # A start time cannot be compared with a sequence number: another query may have started at a much later time.
        comparable = position.sequence_number is not None and at.sequence_number is not None
        return self.read_until if position == at or (comparable and position.reaches(at)) else None

    @property
    def hash_range(self) -> tuple[int, int] | None:
        """The first and last hash key of the row's shard; None if unknown."""
        if self.starting_hash_key is None or self.ending_hash_key is None:
            return None
        return int(self.starting_hash_key), int(self.ending_hash_key)

    @property
    def record(self) -> int | None:
        """Sequence number of the last record that was read; None if unknown, or if none was read."""
        checkpoint = self.checkpoint
        return checkpoint.value if checkpoint is not None and checkpoint.kind is PositionKind.AFTER else None

    @property
    def has_begun(self) -> bool:
        """Whether reading the shard has begun: its checkpoint is not a start position."""
        return self.reached is not None and self.reached.kind in (PositionKind.AFTER, PositionKind.SHARD_END)

    def to_item(self) -> Item:
        at, until, written = self.checkpoint, self.read_until, self.written
        numbers = {
            "leaseCounter": self.counter,
            "epoch": self.epoch or None,
            "checkpointTimestamp": at.value if at is not None and at.kind is PositionKind.AT_TIMESTAMP else None,
            "readUntil": None if until is None else round(until * 1000),
            "readSince": None if self.read_since is None else round(self.read_since * 1000),
            "writtenAt": None if written is None else round(written * 1000),
        }
        texts = {name: getattr(self, each) for each, name in _TEXTS.items()} | dict(self.also)
        texts |= {"leaseKey": self.key, "continuation": None if self.continuation is None else str(self.continuation)}
        if self.distributed:
            texts["distribution"] = Distribution.AUTO.value
        if self.stream is not None:
            texts["streamArn"], numbers["streamCreated"] = self.stream.arn, self.stream.created
        if not self.is_run:
            numbers |= {"checkpointSubSequenceNumber": self.sub, "ownerSwitchesSinceCheckpoint": self.owner_switches}
            record = self.record
            texts["checkpoint"] = "LATEST" if at is None else at.kind.value if record is None else str(record)
        item: Item = {name: {"N": str(number)} for name, number in numbers.items() if number is not None}
        item |= {name: {"S": text} for name, text in texts.items() if text is not None}
        if self.lag is not None:
            item |= of_lag(self.lag)
        if self.marks:
            item |= attributes.of_marks(self.marks)
        # Omit empty sets, which DynamoDB does not support.
        item |= {name: {"SS": sorted(shards)} for each, name in _SETS.items() if (shards := getattr(self, each))}
        return item

    @classmethod
    def from_item(cls, item: Mapping[str, Mapping[str, Any]]) -> Self | None:
        """Convert DynamoDB attributes to a row; None if they are not a lease, such as KCL 3.5's rows with another `entityType`.

        Raises ValueError, naming the row and the attribute, if an attribute has the wrong type or value.
        """
        if attributes.read(item, "entityType", "S", "LEASE") != "LEASE":
            return None
        named: dict[str, Any] = {each: attributes.read(item, name, "S", None) for each, name in _TEXTS.items()}
        named |= {each: frozenset(attributes.read(item, name, "SS", ())) for each, name in _SETS.items()}
        return cls(
            key=attributes.read(item, "leaseKey", "S"),
            counter=attributes.number(item, "leaseCounter"),
            checkpoint=attributes.read_checkpoint(item),
            sub=attributes.number(item, "checkpointSubSequenceNumber", 0),
            owner_switches=attributes.number(item, "ownerSwitchesSinceCheckpoint", 0),
            epoch=attributes.number(item, "epoch", 0),
            distributed=attributes.read(item, "distribution", "S", None) == Distribution.AUTO.value,
            written=attributes.seconds(item, "writtenAt"),
            ours=not _OURS.isdisjoint(item),
            read_until=attributes.seconds(item, "readUntil"),
            read_since=attributes.seconds(item, "readSince") or None,
            continuation=attributes.read_continuation(item),
            stream=attributes.read_stream(item),
            lag=read_lag(item),
            marks=attributes.read_marks(item),
            **named,
        )
