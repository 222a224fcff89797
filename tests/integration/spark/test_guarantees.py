"""Exactly once and in order, as a real Spark shows it: retries, several actions, restarts, resharding, idle shards."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from kinesis_efo.tasks.compat import SPARK_VERSION
from tests.integration.spark.conftest import Queries, Rows, numbers
from tests.support.arriving import numbered
from tests.support.world import World, wait_for_rows, wait_until

MakeWorld = Callable[..., World]


# Shows 76.
@pytest.mark.spark40
def test_a_task_failing_midway_repeats_without_duplicates(
    spark: SparkSession, world: MakeWorld, queries: Queries, tmp_path: Path
) -> None:
    w = world()
    w.put(numbered(15_000, size=800))
    flag = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if seen >= 7_500 and not Path(flag).exists():
                Path(flag).write_text(str(seen))
                raise RuntimeError("half of the range is read")

    # One range for everything, whatever has been fetched when the first trigger comes.
    df = queries.load(w, catchUp="true")
    query = queries.start(df.mapInArrow(fail_once, df.schema), "failing")
    wait_for_rows(query, 15_000)
    assert 7_500 <= int(Path(flag).read_text()) < 15_000
    query.stop()
    assert sorted(numbers(spark.table("failing0").collect())) == list(range(15_000))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("two sinks", marks=pytest.mark.spark43),
        pytest.param("a join with itself", marks=[pytest.mark.spark40, pytest.mark.long]),
        pytest.param("two loads", marks=[pytest.mark.spark40, pytest.mark.long]),
    ],
)
def test_several_sources_of_one_stream_share_a_run(world: MakeWorld, queries: Queries, shape: str) -> None:
    w = world()
    w.put(numbered(10))
    lease = {"leaseTimeout": "60s"}  # a busy machine renews late
    df, rows, other = queries.load(w, **lease), Rows(), Rows()
    other.__name__ = "other"  # type: ignore[misc]
    match shape:
        case "two sinks":
            started = [queries.start(df, rows), queries.start(df, other)]
            both, times = [rows, other], 1
        case "a join with itself":
            joined = df.alias("left").join(df.alias("right"), "sequenceNumber").select("left.data")
            started, both, times = [queries.start(joined, other)], [other], 1
        case _:
            started, both, times = [queries.start(df.union(queries.load(w, **lease)), other)], [other], 2
    for query, seen in zip(started, both, strict=True):
        seen.wait_for(query, 10 * times)
    w.put(numbered(10, first=10))
    for query, seen in zip(started, both, strict=True):
        assert sorted(numbers(seen.wait_for(query, 20 * times))) == sorted([*range(20)] * times)
    assert w.leases()["#run:orders"]["epoch"]["N"] == "1"


# Shows 54.
@pytest.mark.spark40
def test_keys_stay_ordered_across_reshards_and_a_restart(world: MakeWorld, queries: Queries) -> None:
    w = world()
    name, rows = w.streams["orders"], Rows()

    def see_equal_rows_again(df: DataFrame, found: list[Row]) -> None:
        assert df.count() == len(found)
        assert df.filter("partitionKey <> 'k0'").collect() == [row for row in found if row.partitionKey != "k0"]

    rows.check = see_equal_rows_again
    w.put(numbered(300))
    rows.going.clear()
    query = queries.start(queries.load(w, maxRecordsPerTrigger="50"), rows)
    # The first micro-batch has what has arrived by then, 50 at most; the sink holds it until the shard is split.
    rows.wait_for(query, 1)
    w.kinesis.split_shard(StreamName=name, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**127))
    w.wait_active()
    w.put(numbered(300, first=300))
    rows.going.set()
    query.stop()
    unread = 600 - len(rows.all)
    assert unread > 300, "the parent was read to its end: nothing is proved"
    w.kinesis.merge_shards(
        StreamName=name, ShardToMerge="shardId-000000000001", AdjacentShardToMerge="shardId-000000000002"
    )
    w.wait_active()
    w.put(numbered(300, first=600))
    query = queries.start(queries.load(w, maxRecordsPerTrigger="100"), rows)
    rows.wait_for(query, 900)
    query.stop()
    assert sorted(rows.numbers) == list(range(900))
    last: dict[str, tuple[int, int]] = {}
    for row, number in zip(rows.all, rows.numbers, strict=True):
        assert last.get(row.partitionKey, (0, -1)) < (int(row.sequenceNumber), number)
        last[row.partitionKey] = (int(row.sequenceNumber), number)
    assert Counter(row.shardId for row in rows.all).keys() == {f"shardId-{n:012d}" for n in range(4)}
    for batch in rows.batches.values():
        shards = {row.shardId[-1] for row in batch}
        assert shards <= {"0"} or shards <= {"1", "2"} or shards <= {"3"}, "parents and children in one micro-batch"


@pytest.mark.spark
def test_available_now_reads_exactly_what_is_there(world: MakeWorld, queries: Queries) -> None:
    w, rows = world({"orders": 2}), Rows()
    w.aws.backdate(w.streams["orders"], 40)
    w.put(numbered(400))
    w.aws.backdate(w.streams["orders"], 0)
    w.put(numbered(50, first=400))
    options: dict[str, Any] = {"maxRecordsPerTrigger": "100"} if SPARK_VERSION >= (4, 2) else {"catchUp": "true"}
    a_moment_ago = {"endingPosition": f"AT_TIMESTAMP:{round(time.time() * 1000) - 20_000}"}
    for run, (total, end) in enumerate([(400, a_moment_ago), (500, {})]):
        query = queries.start(queries.read_stream(w, **options, **end), rows, availableNow=True)
        assert query.awaitTermination(120), "it does not end"
        assert sorted(rows.numbers) == list(range(total))
        wait_until(lambda: all("leaseOwner" not in row for row in w.leases().values()), 60, "released leases")
        last = {
            f"orders:{row.shardId}": row.sequenceNumber
            for row in sorted(rows.all, key=lambda row: int(row.sequenceNumber))
        }
        found = {key: row["checkpoint"]["S"] for key, row in w.leases().items() if not key.startswith("#")}
        if run == 0:
            assert found == last, "those of the last micro-batch, which Spark has finished"
            w.kinesis.split_shard(
                StreamName=w.streams["orders"], ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
            )
            w.wait_active()
            w.put(numbered(50, first=450))
        elif SPARK_VERSION >= (4, 2):  # before, one micro-batch reads the children, whose rows a next one would store
            assert found == {**last, "orders:shardId-000000000000": "SHARD_END"}


@pytest.mark.spark43
def test_trigger_once_reads_all_whatever_the_limits(world: MakeWorld, queries: Queries) -> None:
    w, rows = world({"orders": 2}), Rows()
    w.put(numbered(400))
    query = queries.start(queries.load(w, maxRecordsPerTrigger="50"), rows, once=True)
    assert query.awaitTermination(120), "it does not end"
    assert sorted(rows.numbers) == list(range(400))
    assert len(rows.batches) == 1
