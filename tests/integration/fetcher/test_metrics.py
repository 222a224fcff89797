"""What a real fetcher counts while it reads, as EMF lines in a file."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.fetching import reading
from tests.support.world import World, wait_until


def test_a_fetchers_metrics_are_those_of_what_was_read(world: Callable[..., World], tmp_path: Path) -> None:
    w = world({"orders": 2})
    w.put([(f"k{n}", b"x" * 100) for n in range(500)])
    path = tmp_path / "emf.log"
    options = {"metricsExport": f"emf:{path}:1s"}
    options["leaseTimeout"] = "60s"  # a lease that a busy machine loses counts, too
    with reading(w, **options) as r:
        r.until(500)
        wait_until(lambda: path.exists() and "MillisBehindLatest" in path.read_text(), 60)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    totals: Counter[str] = Counter()
    for line in lines:
        totals.update({name: value for name, value in line.items() if isinstance(value, int | float)})
    assert totals["RecordsFetched"] == 500
    assert totals["BytesFetched"] > 500 * 100
    assert totals["LeasesTaken"] == 1 and totals["LeasesLost"] == 0
    assert totals["SubscriptionsOpened"] >= 2 and "SubscriptionsFailed" not in totals
    assert {line["Shard"] for line in lines if "Shard" in line} == {f"shardId-{n:012d}" for n in range(2)}
    assert {(line["Application"], line["Environment"]) for line in lines} == {("lake", "test")}
    assert max(line.get("SecondsSinceEvent", 0) for line in lines) < 10
    assert all(line["BufferLimitBytes"] == 256 << 20 for line in lines if "BufferBytes" in line)
