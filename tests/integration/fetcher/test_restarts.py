"""A query that stops and starts again with other options reads on exactly where it was."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from tests.support.fetching import reading
from tests.support.world import World

WAYS = {
    "efo": {},
    "polling": {"readMode": "polling", "pollingInterval": "200ms"},
    "http1": {"transport": "http1"},
    "small buffer": {"bufferBytes": "1m"},
    "other retries": {"retryTimeout": "3m", "leaseTimeout": "2s", "checkpointWritesPerSecond": "1"},
}
LIMITS = {"small buffer": {"max_bytes": 2_000}, "http1": {"max_records": 7}}


@pytest.mark.parametrize(("before", "after"), list(permutations(WAYS, 2)))
def test_other_options_read_on(before: str, after: str, world: Callable[..., World]) -> None:
    w = world({"orders": 2})
    w.put((f"k{number % 7}", b"%03d" % number) for number in range(60))
    read = []
    with reading(w, **WAYS[before]) as r:
        # The first run ends in the middle, and does not hear that its last micro-batch is done.
        read += r.until(20, **LIMITS.get(before, {"max_records": 10}))
        stopped = r.offset
    w.kinesis.split_shard(
        StreamName=w.streams["orders"], ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**126)
    )
    w.wait_active()
    w.put((f"k{number % 7}", b"%03d" % number) for number in range(60, 90))
    with reading(w, at=stopped, **WAYS[after]) as r:
        read += r.until(90 - len(read), **LIMITS.get(after, {}))
        read += r.batch()
    assert sorted(int(row.data) for row in read) == list(range(90))
    for key in {row.key for row in read}:
        numbers = [int(row.data) for row in read if row.key == key]
        assert numbers == sorted(numbers)
