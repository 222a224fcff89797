"""How the ranges of a micro-batch become Spark partitions: few tasks of some megabytes instead of one per shard.

Pure. Relies on positions. Sixteen tasks for sixteen small ranges cost 160 ms of scheduling, two cost 20.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.datasource import InputPartition

from kinesis_efo.positions import Offset, ShardKey, ShardRange

TASK_BYTES: Final = 8 << 20
"""Bytes of events that make a task worth its scheduling."""

UNKNOWN_BYTES: Final = 4 << 20
"""Taken for the size of a range that comes from Spark's log, where sizes are not kept."""


@dataclass(frozen=True)
class FetcherAddress:
    """Where the events of a partition are to be had.

    Attributes:
        location: The fetcher's Flight location.
        secret: The secret of the run; shown nowhere.
    """

    location: str
    secret: str = field(repr=False)


class KinesisPartition(InputPartition):
    """The ranges one task reads, one after the other.

    Attributes:
        address: The fetcher.
        ranges: At most one per shard.
        deaggregate: Whether KPL aggregates are taken apart.
    """

    def __init__(self, address: FetcherAddress, ranges: Sequence[ShardRange], *, deaggregate: bool) -> None:
        super().__init__(None)
        self.address = address
        self.ranges = tuple(ranges)
        self.deaggregate = deaggregate

    def __repr__(self) -> str:
        return "KinesisPartition(" + ", ".join(f"{r.key} ({r.after}, {r.through}]" for r in self.ranges) + ")"


def streams_with_generations(begin: Offset, ranges: Iterable[ShardRange]) -> set[str]:
    """Streams of which one micro-batch carries shards to their ends and reads shards that begin there, too.

    That happens where everything up to now is one micro-batch (`catchUp`). Elsewhere children come in a later one.

    Args:
        begin: Where the micro-batch starts.
        ranges: What it reads.
    """
    return {wanted.key.stream for wanted in ranges if wanted.key not in begin}


def coalesce(
    ranges: Sequence[ShardRange], sizes: Mapping[ShardKey, int], *, together: Collection[str] = ()
) -> list[list[ShardRange]]:
    """Put ranges together into as many tasks as their bytes are worth.

    A shard's range stays whole, so that its records keep their order inside one task.

    Args:
        ranges: Ranges of the micro-batch.
        sizes: Bytes by shard, as far as known.
        together: Streams whose ranges are one task each, parents before children: ids of shards grow.
    """
    groups = [sorted(wanted for wanted in ranges if wanted.key.stream == stream) for stream in sorted(together)]
    free = [wanted for wanted in ranges if wanted.key.stream not in together]
    weights = {wanted.key: sizes.get(wanted.key, UNKNOWN_BYTES) for wanted in free}
    tasks = min(len(free), max(1, math.ceil(sum(weights.values()) / TASK_BYTES)))
    heap: list[tuple[int, int, list[ShardRange]]] = [(0, number, []) for number in range(tasks)]
    for wanted in sorted(free, key=lambda wanted: (-weights[wanted.key], wanted.key)):
        load, number, group = heapq.heappop(heap)
        group.append(wanted)
        heapq.heappush(heap, (load + weights[wanted.key], number, group))
    return [group for group in groups + [group for _, _, group in sorted(heap)] if group]
