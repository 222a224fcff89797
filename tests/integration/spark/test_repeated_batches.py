"""The first micro-batch, with two scans of the source, is repeated after a restart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo_local import LocalAws, Settings
from tests.support.world import make_world, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def aws() -> Iterator[LocalAws]:
    settings = Settings(consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.0)
    with LocalAws(settings=settings) as started:
        yield started


@pytest.mark.spark
def test_a_repeated_first_batch_keeps_its_begin(aws: LocalAws, spark: SparkSession, tmp_path: Path) -> None:
    """Spark does not log that, and asks for the initial offset once more: at LATEST, that is another one by then."""
    w = make_world(aws, tmp_path, {"orders": 2})
    attempts: dict[int, list[list[int]]] = {}
    put = 0

    def write(frame: DataFrame, number: int) -> None:
        rows = sorted(int(row.data) for row in frame.select("data").collect())
        attempts.setdefault(number, []).append(rows)

    def start() -> Any:
        options = {**w.options, "startingPosition": "LATEST", "leaseTimeout": "1s", "pollTimeout": "30s"}
        stream = spark.readStream.format("kinesis-efo").options(**options).load()
        stream = stream.where("crc32(data) % 2 = 0").union(stream.where("crc32(data) % 2 = 1"))
        return stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def put_some() -> None:
        nonlocal put
        w.put((f"key{number}", b"%d" % number) for number in range(put, put + 5))
        put += 5

    query = start()

    def first_attempt() -> bool:
        assert query.exception() is None, query.exception()
        put_some()
        return bool(attempts)

    wait_until(first_attempt, 90, every=0.1)
    query.stop()
    # As if Spark had died before it had written that micro-batch 0 is done.
    for log in ("offsets", "commits"):
        for file in (tmp_path / "checkpoint" / log).iterdir():
            if log == "commits" or not file.name.lstrip(".").startswith("0"):
                file.unlink()
    (first,) = attempts.pop(0)
    attempts.clear()
    assert first
    put_some()
    query = start()
    put_some()

    def all_rows() -> list[int]:
        return sorted(number for (rows,) in attempts.values() for number in rows)

    def has_all() -> bool:
        assert query.exception() is None, query.exception()
        return bool(rows := all_rows()) and len(rows) >= put - rows[0]

    try:
        wait_until(has_all, 90)
    finally:
        query.stop()
    assert attempts[0] == [first], "the same rows, once more"
    # Records that had come before the query began are not of it.
    assert all_rows() == list(range(all_rows()[0], put))
