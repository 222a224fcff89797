"""A sink that stalls while far more than the budget waits: bounded memory, a pause without an error, nothing lost.

`KINESIS_EFO_FULL=1` makes it the full size: 2 GB waiting.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo_local import LocalAws, Settings
from tests.integration.spark.conftest import spark  # noqa: F401
from tests.soak.vitals import own_memory
from tests.support.world import World, make_world, wait_until

pytestmark = [pytest.mark.spark43, pytest.mark.long, pytest.mark.timeout(900)]

MB = 1 << 20
FULL = os.environ.get("KINESIS_EFO_FULL") == "1"
WAITING_MB = 2048 if FULL else 200
BUDGET_MB = 256 if FULL else 32
SLACK_MB = 150
SHARDS = 2


class Sampler:
    """The memory of the process that Spark keeps for the reader: its own, without the libraries' files that are mapped.

    Those are some 60 MB of pages that the system shares and drops as it likes.
    """

    def __init__(self, world: World) -> None:
        self.most = 0
        self._world = world
        self.process: psutil.Process | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            if self.process is None:
                with suppress(ValueError):  # nobody has the lease yet
                    self.process = self._world.reader()
            else:
                try:
                    self.most = max(self.most, own_memory(self.process.pid))
                except OSError:
                    return


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    settings = Settings(consumer_creating_seconds=0.0, idle_event_seconds=0.5, read_limit=False)
    with LocalAws(settings=settings) as aws:
        yield make_world(aws, tmp_path, {"orders": SHARDS})


def test_a_stalled_sink_bounds_memory_and_loses_nothing(
    spark: SparkSession,  # noqa: F811
    world: World,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    size = 20_000
    count = WAITING_MB * MB // size
    world.put((f"k{n}", f"{n:08d}".encode().ljust(size, b"x")) for n in range(count))
    seen: Counter[int] = Counter()
    stalled = threading.Event()

    def sink(df: DataFrame, batch: int) -> None:
        rows = df.selectExpr("cast(substring(data, 1, 8) as string) as n").collect()
        if rows and not stalled.is_set():
            stalled.set()
            # Until the budget is full, and no shard is read any more.
            wait_until(lambda: not world.aws.kinesis.subscriptions, 120, "the end of all subscriptions", every=0.2)
        seen.update(int(row.n) for row in rows)

    options = {**world.options, "startingPosition": "TRIM_HORIZON", "bufferBytes": f"{BUDGET_MB}m"}
    df = spark.readStream.format("kinesis-efo").options(**options).load()
    with Sampler(world) as sampler:
        query = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:

            def done() -> bool:
                assert query.exception() is None, query.exception()
                return len(seen) >= count

            wait_until(done, 720 if FULL else 240, f"{count} rows; {len(seen)}")
        finally:
            query.stop()
    calls = world.aws.kinesis.calls("SubscribeToShard")
    record_property("rss_mb", sampler.most // MB)
    print(f"{WAITING_MB} MB waiting: {sampler.most // MB} MB resident, {calls} subscriptions")  # noqa: T201
    assert seen == Counter(range(count)), "each record once"
    assert 0 < sampler.most < (BUDGET_MB + SLACK_MB) * MB, f"{sampler.most // MB} MB"
    assert calls >= 2 * SHARDS, "the subscriptions were not closed and opened again"
    assert world.aws.kinesis.calls("SubscribeToShard", "ok") == calls, "and without an error"
