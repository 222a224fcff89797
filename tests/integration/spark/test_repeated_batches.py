"""A micro-batch that is repeated after a restart: beside a Kinesis that answers wrongly, and from a checkpoint of an earlier version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo_local import LocalAws, Settings
from kinesis_efo_local.wrong_answers import WrongAnswers
from tests.support.world import World, make_world, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def aws() -> Iterator[LocalAws]:
    settings = Settings(consumer_creating_seconds=0.0, idle_event_seconds=0.5, resubscribe_seconds=0.0)
    with LocalAws(settings=settings) as started:
        yield started


class Run:
    """Runs of one query, which notes the rows of each micro-batch, as a sink that knows numbers of micro-batches does."""

    def __init__(self, spark: SparkSession, world: World, checkpoint: Path, **options: str) -> None:
        self.batches: dict[int, list[int]] = {}
        self._spark, self._checkpoint = spark, checkpoint
        self._options = {**world.options, "startingPosition": "TRIM_HORIZON", "leaseTimeout": "1s", **options}

    @property
    def rows(self) -> list[int]:
        return sorted(number for rows in self.batches.values() for number in rows)

    def until(self, count: int) -> None:
        """Run until so many rows were read, and no further."""

        def note(frame: DataFrame, number: int) -> None:
            self.batches[number] = [int(row.data) for row in frame.select("data").collect()]

        stream = self._spark.readStream.format("kinesis-efo").options(**self._options).load()
        query = stream.writeStream.foreachBatch(note).option("checkpointLocation", str(self._checkpoint)).start()
        try:
            wait_until(lambda: query.exception() or len(self.rows) >= count, 90, f"{count} rows; {len(self.rows)}")
            wait_until(lambda: query.exception() or self.numbers("commits") == self.numbers("offsets"), 60, "commits")
            assert query.exception() is None, query.exception()
        finally:
            query.stop()

    def forget_last(self, old: bool) -> int:
        """Leave the checkpoint as if Spark had died in its last micro-batch with rows; returns its number."""
        last = max(number for number, rows in self.batches.items() if rows)
        for number in self.numbers("offsets"):
            if number >= last:
                self.forget(number, "commits", *(["offsets"] if number > last else []))
        self.batches = {number: rows for number, rows in self.batches.items() if number != last}
        for number in self.numbers("offsets"):
            self._check_format(self._checkpoint / "offsets" / str(number), old)
        return last

    def forget(self, number: int, *logs: str) -> None:
        """Take a micro-batch out of some of Spark's logs."""
        for log in logs:
            for file in (str(number), f".{number}.crc"):
                (self._checkpoint / log / file).unlink(missing_ok=True)

    def _check_format(self, file: Path, old: bool) -> None:
        """With `old`, make an offset as the version wrote it that knew no last records."""
        *head, offset = file.read_text().splitlines()
        document: dict[str, Any] = json.loads(offset)
        if old:
            document.pop("lasts", None)
            file.write_text("\n".join([*head, json.dumps(document, separators=(",", ":"))]))
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    def numbers(self, name: str) -> list[int]:
        """The micro-batches in one of Spark's logs."""
        return sorted(int(file.name) for file in (self._checkpoint / name).iterdir() if file.name.isdigit())


@pytest.mark.parametrize(
    "case", [pytest.param("lying", marks=pytest.mark.spark43), pytest.param("old", marks=pytest.mark.spark40)]
)
def test_a_repeated_micro_batch_has_its_rows(spark: SparkSession, aws: LocalAws, tmp_path: Path, case: str) -> None:
    world = make_world(aws, tmp_path)
    world.put([("k", b"%d" % number) for number in range(1000)])
    run = Run(spark, world, tmp_path / "checkpoint", readMode="polling")
    run.until(1000)
    assert run.rows == list(range(1000))
    last = run.forget_last(old=case == "old")
    assert len(run.rows) < 1000
    if case == "lying":
        aws.kinesis.wrong = WrongAnswers({"quiet"}, rate=1.0, in_a_row=5, random=Random(1))
    world.put([("k", b"%d" % number) for number in range(1000, 1010)])
    run.until(1010)
    assert run.rows == list(range(1010)), "each once"
    assert run.batches[last], "and the micro-batch itself has them"


@pytest.mark.spark43
def test_first_batch_is_repeated_without_its_lease_rows(spark: SparkSession, aws: LocalAws, tmp_path: Path) -> None:
    """The log names where it begins, so nothing that decided this is needed again."""
    world = make_world(aws, tmp_path)
    world.put([("k", b"%d" % number) for number in range(10)])
    Run(spark, world, tmp_path / "before").until(10)
    world.put([("k", b"%d" % number) for number in range(10, 20)])
    run = Run(spark, world, tmp_path / "checkpoint", startingPosition="LEASES", pollTimeout="30s")
    run.until(10)
    # The rows may stand one micro-batch earlier than the query that wrote them.
    first = run.batches[0]
    assert first
    for number in run.numbers("offsets"):
        run.forget(number, "commits" if number == 0 else "offsets", "commits")
    run.batches.clear()
    for key in world.leases():
        world.dynamodb.delete_item(TableName=world.lease_table, Key={"leaseKey": {"S": key}})
    world.put([("k", b"%d" % number) for number in range(20, 30)])
    run.until(30 - min(first))
    assert run.batches[0] == first
    assert run.rows == list(range(min(first), 30))


@pytest.mark.parametrize(
    ("empty", "scans"),
    [pytest.param(True, 1, marks=pytest.mark.spark40), pytest.param(False, 2, marks=pytest.mark.spark)],
)
def test_a_repeated_first_batch_keeps_its_begin(
    empty: bool, scans: int, aws: LocalAws, spark: SparkSession, tmp_path: Path
) -> None:
    """Spark does not log that, and asks for the initial offset once more: at LATEST, that is another one by then."""
    w = make_world(aws, tmp_path, {"orders": 2})
    attempts: dict[int, list[list[int]]] = {}
    put = 0

    def write(frame: DataFrame, number: int) -> None:
        rows = sorted(int(row.data) for row in frame.select("data").collect())
        attempts.setdefault(number, []).append(rows)

    def start() -> Any:
        options = {**w.options, "startingPosition": "LATEST", "leaseTimeout": "1s"}
        options["pollTimeout"] = "200ms" if empty else "30s"
        stream = spark.readStream.format("kinesis-efo").options(**options).load()
        if scans == 2:
            stream = stream.where("crc32(data) % 2 = 0").union(stream.where("crc32(data) % 2 = 1"))
        return stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def put_some() -> None:
        nonlocal put
        w.put((f"key{number}", b"%d" % number) for number in range(put, put + 5))
        put += 5

    query = start()

    def first_attempt() -> bool:
        assert query.exception() is None, query.exception()
        if not empty:
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
    assert bool(first) is not empty
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
    assert not empty or all_rows()[0] == 0
