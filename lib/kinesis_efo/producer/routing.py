"""Which shard a record goes to: the shard map, as ListShards last told it.

A prediction, not a promise: the map may be old. The answer of PutRecords names the real shard.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from kinesis_efo.errors import WriteError

MAX_HASH = (1 << 128) - 1
"""The end of the ring of hash keys."""


@dataclass(frozen=True, slots=True)
class HashRange:
    """A shard's range of hash keys, both ends included.

    Attributes:
        open: Whether it still takes records.
    """

    id: str
    start: int
    end: int
    open: bool = True


class ShardMap:
    """The shards of a stream.

    Args:
        shards: Open and closed ones.

    Raises:
        WriteError: None is open.
    """

    def __init__(self, shards: Iterable[HashRange]) -> None:
        self._all = {shard.id: shard for shard in shards}
        takers = sorted((shard for shard in self._all.values() if shard.open), key=lambda shard: shard.end)
        if not takers:
            raise WriteError(f"the stream has no open shard; ListShards names {sorted(self._all) or 'none at all'}")
        # The last one takes all above it: no place on the ring is without a shard, whatever ListShards left out.
        self._ends = [*(shard.end for shard in takers[:-1]), MAX_HASH]
        self._ids = [shard.id for shard in takers]

    @property
    def open_shards(self) -> tuple[str, ...]:
        """Ids of the shards that take records, by hash key."""
        return tuple(self._ids)

    def shard_of(self, ring: int) -> str:
        """The open shard for a place on the ring of hash keys."""
        return self._ids[bisect_left(self._ends, ring)]

    def knows(self, shard: str) -> bool:
        """Whether ListShards named the shard, open or closed."""
        return shard in self._all

    def covers(self, shard: str, ring: int) -> bool:
        """Whether a place belongs to a shard; not, if the shard is unknown."""
        known = self._all.get(shard)
        return known is not None and known.start <= ring <= known.end
