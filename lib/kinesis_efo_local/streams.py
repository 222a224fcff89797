"""A stream: its shards, routing of records, resharding and retention. No I/O; the caller passes the time."""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import msgspec

from .errors import AwsError, in_use, invalid, not_found
from .limits import Bucket
from .sequence import Parsed, Ticks, parse
from .shards import MAX_HASH, KeptShard, Shard

if TYPE_CHECKING:
    from .consumers import Consumer


AUTO = "AUTO"
KEYED = "USER_PARTITION_KEY"


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of the clocks: epoch seconds and monotonic seconds."""

    wall: float
    monotonic: float


def even_ranges(count: int) -> list[tuple[int, int]]:
    """Divide the hash keys into `count` ranges, as CreateStream does."""
    width = (MAX_HASH + 1) // count
    return [(i * width, MAX_HASH if i == count - 1 else (i + 1) * width - 1) for i in range(count)]


@dataclass(slots=True)
class Traits:
    """The properties of a stream that can change without a reshard.

    Attributes:
        max_record_bytes: Maximum bytes of a record, partition key included.
        key_id: KMS key that encrypts the stream, as given in the request; None if the stream is not encrypted.
        backdated_seconds: How much earlier arrival times are than the real ones (`LocalAws.backdate`).
        distribution: AUTO if Kinesis chooses the shard of each record, USER_PARTITION_KEY if the record's key does.
        warm_mib: Current warm throughput in MiB/s; None if it was never set.
        warm_target_mib: Warm throughput in MiB/s to which the stream is being scaled; None if it was never set.
    """

    retention_seconds: float
    mode: str = "PROVISIONED"
    max_record_bytes: int = 1024 * 1024
    key_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    backdated_seconds: float = 0.0
    shard_metrics: list[str] = field(default_factory=list)
    policy: str | None = None
    distribution: str = KEYED
    warm_mib: int | None = None
    warm_target_mib: int | None = None

    @property
    def warm_throughput(self) -> dict[str, dict[str, int | None]]:
        """The stream's warm throughput, as in API responses; empty if it was never set."""
        if self.warm_target_mib is None:
            return {}
        return {"WarmThroughput": {"TargetMiBps": self.warm_target_mib, "CurrentMiBps": self.warm_mib or 0}}

    @property
    def distributed(self) -> bool:
        """Whether Kinesis chooses the shard of each record, regardless of the record's keys."""
        return self.distribution == AUTO

    @property
    def encryption(self) -> str:
        """The stream's encryption type, as in API responses."""
        return "NONE" if self.key_id is None else "KMS"


class KeptStream(msgspec.Struct):
    """A stream, as stored in a data directory."""

    name: str
    traits: Traits
    created_at: float
    created_tick: int
    issued_tick: int
    next_index: int
    last_consumer_stamp: int
    shards: list[KeptShard]


class Stream:
    """One stream of an account and region in the local AWS.

    Args:
        shard_count: Number of shards to create; 0 in `restored`, which adds the stored shards instead.
        ticks: The account's source of ticks, which sequence numbers contain.
        now: The creation time.
    """

    def __init__(self, name: str, arn: str, shard_count: int, traits: Traits, ticks: Ticks, now: Moment) -> None:
        self.name = name
        self.arn = arn
        self.traits = traits
        self.created_at = now.wall
        self.status = "CREATING"
        self.shards: dict[str, Shard] = {}
        self.consumers: dict[str, Consumer] = {}
        self.queues: dict[str, float] = {}
        self.last_consumer_stamp = 0
        self._ticks = ticks
        self._created_tick = ticks.next(now.wall)
        self._issued_tick = self._created_tick
        self._next_index = 0
        self._open: list[Shard] = []
        self._open_starts: list[int] = []
        self._turns = itertools.count()
        self.dry_runs = Bucket(1, now.monotonic)
        for hash_range in even_ranges(shard_count) if shard_count else ():
            self._open_shard(hash_range, (), now)
        self._index_open()

    def keep(self) -> KeptStream:
        """Return the stream as it is stored in a data directory."""
        return KeptStream(
            name=self.name,
            traits=self.traits,
            created_at=self.created_at,
            created_tick=self._created_tick,
            issued_tick=self._issued_tick,
            next_index=self._next_index,
            last_consumer_stamp=self.last_consumer_stamp,
            shards=[shard.keep() for shard in self.shards.values()],
        )

    @classmethod
    def restored(cls, kept: KeptStream, arn: str, ticks: Ticks, now: Moment) -> Stream:
        """Restore a stream from a data directory, without its consumers."""
        stream = cls(kept.name, arn, 0, kept.traits, ticks, now)
        stream.created_at, stream.status = kept.created_at, "ACTIVE"
        stream.last_consumer_stamp = kept.last_consumer_stamp
        stream._created_tick, stream._issued_tick = kept.created_tick, kept.issued_tick
        stream._next_index = kept.next_index
        shards = [Shard.restored(each, now.monotonic) for each in kept.shards]
        stream.shards = {shard.id: shard for shard in shards}
        for shard, each in zip(shards, kept.shards, strict=True):
            shard.children = tuple(stream.shards[child] for child in each.children if child in stream.shards)
        stream._open = [shard for shard in shards if not shard.closed]
        stream._index_open()
        return stream

    def shard_for(self, partition_key: str | None, explicit_hash_key: str | None) -> Shard:
        """Return the open shard for a record: by its keys, or round-robin if Kinesis distributes the stream's records."""
        if self.traits.distributed or partition_key is None:
            return self._open[next(self._turns) % len(self._open)]
        if explicit_hash_key is None:
            number = int.from_bytes(hashlib.md5(partition_key.encode(), usedforsecurity=False).digest())
        else:
            number = int(explicit_hash_key)
        return self._open[bisect_right(self._open_starts, number) - 1]

    def end_dry_run(self, now: Moment) -> NoReturn:
        """Raise the error with which Kinesis ends a dry run whose request would succeed.

        Raises AwsError: `DryRunOperationException`, or `ThrottlingException` if the stream had another dry run, of any operation,
        within the last second.
        """
        if self.dry_runs.delay(1, now.monotonic) > 0:
            raise AwsError(
                "ThrottlingException",
                f"Rate exceeded for requests with DryRun on stream {self.name} under account {self.arn.split(':')[4]}.",
            )
        self.dry_runs.take(1)
        raise AwsError("DryRunOperationException", "Request would have succeeded, but DryRun flag is set.")

    def next_tick(self, now: float) -> int:
        """Return a tick higher than any in this stream, for a record or a continuation."""
        self._issued_tick = self._ticks.next(now)
        return self._issued_tick

    def parse_number(self, text: str, shard: Shard) -> Parsed:
        """Parse a sequence number from a request for `shard`.

        Raises AwsError `InvalidArgumentException` if this stream never issued the number, or issued it for another
        shard.
        """
        parsed = parse(text)
        if parsed is None or not self._created_tick <= parsed.tick <= self._issued_tick:
            raise invalid(
                f"StartingSequenceNumber {text} used on shard {shard.id} in stream {self.name} under account "
                f"{self.arn.split(':')[4]} is invalid because it did not come from this stream."
            )
        if parsed.index != shard.index:
            raise invalid(
                f"Invalid SequenceNumber. It encodes shardId-{parsed.index:012d}, while it was used in a call to a shard with "
                f"{shard.id}"
            )
        return parsed

    def check_issued(self, text: str) -> None:
        """Raise PutRecord's error for a SequenceNumberForOrdering that this stream has not issued."""
        parsed = parse(text)
        if parsed is None or not self._created_tick <= parsed.tick <= self._issued_tick:
            raise invalid(
                f"ExclusiveMinimumSequenceNumber {text} used in PutRecord on stream {self.name} under account "
                f"{self.arn.split(':')[4]} is invalid."
            )

    def horizon(self, now: float) -> float:
        """The time in epoch seconds before which records have expired."""
        return now - self.traits.retention_seconds

    def expire(self, now: float) -> None:
        """Remove expired records, and closed shards whose records have all expired."""
        horizon = self.horizon(now)
        for shard in tuple(self.shards.values()):
            shard.trim(horizon)
            if shard.closed_at is not None and shard.closed_at < horizon:
                del self.shards[shard.id]
                shard.wake()

    @property
    def open_shards(self) -> list[Shard]:
        """The open shards, in the order of their hash ranges."""
        return list(self._open)

    def shard(self, shard_id: str) -> Shard:
        """Find a shard by its ID. Raises AwsError `ResourceNotFoundException` if it does not exist, or has expired."""
        try:
            return self.shards[shard_id]
        except KeyError:
            raise not_found(
                f"Shard {shard_id} in stream {self.name} under account {self.arn.split(':')[4]} does not exist"
            ) from None

    def check_active(self) -> None:
        """Raise `ResourceInUseException` unless the stream is ACTIVE."""
        if self.status != "ACTIVE":
            raise in_use(
                f"Stream {self.name} under account {self.arn.split(':')[4]} not ACTIVE, instead in state {self.status}"
            )

    def check_listable(self) -> None:
        """Raise `ResourceInUseException` while the stream is being created or deleted."""
        if self.status not in ("ACTIVE", "UPDATING"):
            raise in_use(
                f"Stream {self.name} under account {self.arn.split(':')[4]} not ACTIVE or UPDATING, instead in state {self.status}"
            )

    def check_split(self, shard_id: str, at: int) -> None:
        """Raise SplitShard's error if `at` cannot be the start of a new shard."""
        shard = self._open_or_invalid(shard_id)
        start, end = shard.hash_range
        if not start + 1 < at < end:
            raise invalid(
                f"NewStartingHashKey {at} used in SplitShard() on shard {shard_id} in stream {self.name} is not both greater "
                f"than one plus the shard's StartingHashKey {start} and less than the shard's EndingHashKey {end}."
            )

    def split(self, shard_id: str, at: int, now: Moment) -> None:
        """Close a shard and open two child shards, the second of which begins at hash key `at`."""
        parent = self.shards[shard_id]
        start, end = parent.hash_range
        self._replace((parent,), [(start, at - 1), (at, end)], now)

    def check_merge(self, shard_id: str, adjacent_id: str) -> None:
        """Raise MergeShards' error if the two shards are not adjacent."""
        first, second = self._open_or_invalid(shard_id), self._open_or_invalid(adjacent_id)
        if first.hash_range[1] + 1 != second.hash_range[0] and second.hash_range[1] + 1 != first.hash_range[0]:
            raise invalid(
                f"Shards {shard_id} and {adjacent_id} in stream {self.name} under account {self.arn.split(':')[4]} are not an "
                "adjacent pair of shards eligible for merging"
            )

    def merge(self, shard_id: str, adjacent_id: str, now: Moment) -> None:
        """Close two adjacent shards and open one child shard."""
        first, second = self.shards[shard_id], self.shards[adjacent_id]
        hash_range = (min(first.hash_range[0], second.hash_range[0]), max(first.hash_range[1], second.hash_range[1]))
        self._replace((first, second), [hash_range], now)

    def scale(self, target: int, now: Moment) -> None:
        """Reshard to `target` shards of equal hash ranges by splits and merges, as UpdateShardCount does."""
        wanted = {start for start, _ in even_ranges(target)}
        for start in sorted(wanted):
            shard = self._open[bisect_right(self._open_starts, start) - 1]
            if shard.hash_range[0] != start:
                self.split(shard.id, start, now)
        position = 0
        while position + 1 < len(self._open):
            if self._open_starts[position + 1] in wanted:
                position += 1
            else:
                self.merge(self._open[position].id, self._open[position + 1].id, now)

    def _open_or_invalid(self, shard_id: str) -> Shard:
        shard = self.shard(shard_id)
        if shard.closed:
            raise invalid(
                f"Shard {shard_id} in stream {self.name} under account {self.arn.split(':')[4]} has already been merged or "
                "split, and thus is not eligible for merging or splitting."
            )
        return shard

    def _replace(self, parents: tuple[Shard, ...], hash_ranges: list[tuple[int, int]], now: Moment) -> None:
        closing = self.next_tick(now.wall)
        children = tuple(self._open_shard(each, tuple(parent.id for parent in parents), now) for each in hash_ranges)
        # Change the routing before `close` wakes the listeners, which then find the new shards.
        self._open = [shard for shard in self._open if shard not in parents]
        self._open.extend(children)
        self._index_open()
        for parent in parents:
            parent.close(closing, now.wall, children)

    def _open_shard(self, hash_range: tuple[int, int], parents: tuple[str, ...], now: Moment) -> Shard:
        tick = self.next_tick(now.wall)
        # Children's sequence numbers must be higher than their parents', even if several reshards happen within a second.
        numbered = max([tick // 1_000_000_000, *(self.shards[each].numbering.created + 1 for each in parents)])
        shard = Shard(self._next_index, hash_range, parents, tick, now.wall, now.monotonic, numbered)
        self._next_index += 1
        self.shards[shard.id] = shard
        if not parents:
            self._open.append(shard)
        return shard

    def _index_open(self) -> None:
        self._open.sort(key=lambda shard: shard.hash_range)
        self._open_starts = [shard.hash_range[0] for shard in self._open]
