"""Streams that come and go between two runs of a query: nothing is missed in silence, nothing is read twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, Row

from kinesis_efo.tasks.compat import SPARK_VERSION
from tests.integration.spark.conftest import Queries
from tests.support.next_start import next_start
from tests.support.world import World, wait_until


class Kept:
    """A `foreachBatch` function that keeps all rows, and can fail once they are kept."""

    __name__ = "kept"

    def __init__(self) -> None:
        self.calls = 0
        self.batches: dict[int, list[tuple[str, str]]] = {}
        self.fails_with: Callable[[list[Row]], bool] = lambda _rows: False

    def __call__(self, df: DataFrame, batch: int) -> None:
        self.calls += 1
        rows = df.collect()
        # A batch that is done again takes the place of the one that failed.
        self.batches[batch] = [(row["stream"], bytes(row["data"]).decode()) for row in rows]
        if self.fails_with(rows):
            raise RuntimeError("the sink has failed")

    @property
    def all(self) -> list[tuple[str, str]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def put(world: World, stream: str, *names: str) -> list[tuple[str, str]]:
    world.put([(name, name.encode()) for name in names], stream)
    return [(stream, name) for name in names]


@pytest.mark.long
@pytest.mark.spark40
def test_streams_come_and_go(world: Callable[..., World], queries: Queries) -> None:
    w, kept = world({"orders": 1, "clicks": 2}), Kept()
    expected = put(w, "orders", "o1", "o2") + put(w, "clicks", "c1", "c2", "c3")

    # At first, the application has one stream.
    query = queries.start(queries.load(w, streams="orders"), kept)
    wait_until(lambda: len(kept.all) >= 2, 120)
    query.stop()
    assert kept.all == sorted(each for each in expected if each[0] == "orders")
    says = next_start(w, queries.directory / "checkpoint-kept")
    assert says["restart of orders"].startswith("passed: goes on with 1 shard, read up to 20")
    assert says["restart of clicks"].startswith(
        "passed: is new to the checkpoint: its 2 shards begin at 'newStreamPosition'"
    )

    # The second comes, and the job fails in the middle of the first micro-batch that has its rows.
    expected += put(w, "orders", "o3")
    kept.fails_with = lambda rows: any(row["stream"] == "clicks" for row in rows)
    query = queries.start(queries.load(w, streams="*"), kept)
    wait_until(lambda: query.exception() is not None, 120)
    assert (
        "is not finished: the next start repeats it"
        in next_start(w, queries.directory / "checkpoint-kept")["checkpoint"]
    )
    kept.fails_with = lambda _rows: False
    query = queries.start(queries.load(w, streams="*"), kept)
    wait_until(lambda: len(kept.all) >= len(expected), 120)
    expected += put(w, "clicks", "c4")
    wait_until(lambda: len(kept.all) >= len(expected), 120)
    # A micro-batch that is not finished would be done again without the stream that goes.
    query.processAllAvailable()
    query.stop()
    assert kept.all == sorted(expected)

    assert next_start(w, queries.directory / "checkpoint-kept")["restart of clicks"].startswith(
        "passed: goes on with 2 shards"
    )

    # It goes: an error, until somebody says that this is meant.
    query = queries.start(queries.load(w, streams="orders"), kept)
    wait_until(lambda: query.exception() is not None, 120)
    says = next_start(w, queries.directory / "checkpoint-kept", "orders")["streams of the checkpoint"]
    for told in (str(query.exception()), says):
        assert "names stream 'clicks', but the query reads 'orders'" in told
    assert "set kinesis-efo option 'removedStreams' to drop" in says
    missed = put(w, "clicks", "c5")
    expected += put(w, "orders", "o4")
    query = queries.start(queries.load(w, streams="orders", removedStreams="drop"), kept)
    wait_until(lambda: len(kept.all) >= len(expected), 120)
    query.stop()
    assert kept.all == sorted(expected)

    # It comes again, and goes on where its checkpoint in the lease table stands.
    query = queries.start(queries.load(w, newStreamPosition="LEASES"), kept)
    wait_until(lambda: len(kept.all) >= len(expected) + 1, 120)
    query.stop()
    assert kept.all == sorted(expected + missed)


@pytest.mark.spark
def test_a_query_that_ends_reads_a_new_stream(world: Callable[..., World], queries: Queries) -> None:
    w, kept = world({"orders": 1, "clicks": 1}), Kept()
    first, second = put(w, "orders", "o1"), put(w, "clicks", "c1", "c2")
    # On Spark 4.0 such a run has one micro-batch, which begins the new stream and reads nothing of it.
    # The runs around the one that begins it poll, which is quicker.
    runs = [
        ({"streams": "orders", "readMode": "polling"}, first),
        ({"streams": "*"}, first + second if SPARK_VERSION >= (4, 2) else first),
        ({"streams": "*", "readMode": "polling"}, first + second),
    ]
    for options, expected in runs:
        if kept.all != sorted(first + second):
            query = queries.start(queries.load(w, catchUp="true", **options), kept, availableNow=True)
            assert query.awaitTermination(120)
        assert kept.all == sorted(expected)
