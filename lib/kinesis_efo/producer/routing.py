"""The shard map: predicts the shard to which Kinesis will write a record, from the last ListShards response.

The map may be out of date; only the PutRecords response contains the actual shard. Aggregates require the prediction. It also allows a
separate queue for each shard, so that a hot shard does not delay the others.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from kinesis_efo.errors import WriteError
from kinesis_efo.producer.settings import ProducerSettings
from kinesis_efo.records.distribution import Distribution

logger = logging.getLogger(__name__)

MAX_HASH = (1 << 128) - 1
"""The largest hash key."""

ANY_SHARD = "any"
"""Used instead of a shard id for all records of a stream whose shards cannot be predicted."""

DEFAULT_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamTraits:
    """The properties of a stream that a producer needs, except its shards. If `distribution` is UNKNOWN, `unknown` contains the reason."""

    max_record_bytes: int = DEFAULT_RECORD_BYTES
    distribution: Distribution = Distribution.KEYED
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class HashRange:
    """A shard and its range of hash keys; `start` and `end` are included.

    Attributes:
        open: Whether the shard still accepts records.
        first: The shard's first sequence number. It changes if the stream is deleted and re-created.
    """

    id: str
    start: int
    end: int
    open: bool = True
    first: str = ""


class ShardMap:
    """The open and closed shards of a stream, and how Kinesis distributes records over them. At least one shard must be open."""

    def __init__(self, shards: Iterable[HashRange], distribution: Distribution = Distribution.KEYED) -> None:
        self.distribution = distribution
        self._all = {shard.id: shard for shard in shards}
        open_shards = sorted((shard for shard in self._all.values() if shard.open), key=lambda shard: shard.end)
        if not open_shards:
            raise WriteError(f"the stream has no open shard; ListShards names {sorted(self._all) or 'none at all'}")
        # Assign all higher hash keys to the last shard, so that each hash key has a shard even if ListShards omitted some shards.
        self._ends = [*(shard.end for shard in open_shards[:-1]), MAX_HASH]
        self._ids = [shard.id for shard in open_shards]

    @property
    def predicts(self) -> bool:
        """Whether a record's hash key determines its shard. If not, the map's only shard is `ANY_SHARD`."""
        return self.distribution is not Distribution.AUTO

    @property
    def open_shards(self) -> tuple[str, ...]:
        """Ids of the open shards, in the order of their hash keys."""
        return tuple(self._ids)

    def is_like(self, other: ShardMap) -> bool:
        """Whether both maps assign every hash key to the same shard."""
        return (self.distribution, self._ids, self._ends) == (other.distribution, other._ids, other._ends)

    def is_older_than(self, other: ShardMap) -> bool:
        """Whether a shard that is open in this map is closed in the other one. ListShards may return such an outdated state."""
        return any(
            shard.open
            and (known := other._all.get(shard.id)) is not None
            and not known.open
            and known.first == shard.first
            for shard in self._all.values()
        )

    def has_same(self, shard: str, other: ShardMap) -> bool:
        """Whether a shard has the same properties in both maps. They differ if the stream was re-created in between."""
        return self._all.get(shard) == other._all.get(shard)

    def shard_of(self, hash_key: int) -> str:
        return self._ids[bisect_left(self._ends, hash_key)]

    def knows(self, shard: str) -> bool:
        """Whether ListShards returned the shard, open or closed. Always true if the map does not predict shards."""
        return shard in self._all or not self.predicts

    def covers(self, shard: str, hash_key: int) -> bool:
        """Whether a hash key is in the range of a shard; False if the shard is unknown."""
        known = self._all.get(shard)
        return known is not None and known.start <= hash_key <= known.end


async def shard_map(
    traits: StreamTraits,
    list_shards: Callable[[], Awaitable[Sequence[HashRange]]],
    listed: Sequence[HashRange] | None = None,
) -> ShardMap:
    """Create the shard map from `listed` or, if None, from the result of `list_shards`. Both are ignored with `Distribution.AUTO`."""
    if traits.distribution is Distribution.AUTO:
        return ShardMap([HashRange(ANY_SHARD, 0, MAX_HASH)], traits.distribution)
    return ShardMap(await list_shards() if listed is None else listed, traits.distribution)


def warn_of_consequences(stream: str, traits: StreamTraits, settings: ProducerSettings) -> None:
    """Log a warning for each setting that has no effect on a stream with these traits. Each warning is logged once per process."""
    if traits.distribution is Distribution.UNKNOWN and settings.aggregate:
        _warn_once(
            f"stream {stream}: records are not aggregated, because it is not known whether Kinesis distributes the stream's records "
            f"itself (RecordDistributionStrategy), in which case readers may drop aggregates: {traits.unknown}"
        )
    asked = [what for what, on in (("aggregated", settings.aggregate), ("kept in order", settings.ordered)) if on]
    if traits.distribution is Distribution.AUTO and asked:
        _warn_once(
            f"stream {stream}: records are not {' or '.join(asked)}: Kinesis distributes the stream's records itself "
            "(RecordDistributionStrategy AUTO), whatever their keys are"
        )


@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)
