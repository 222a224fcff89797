"""Runs docs/how-to/delta-and-iceberg.md: `python -m tests.support.table_formats MANIFEST STREAM DIRECTORY JAR...`.

A program of its own, because Spark takes jars at its start. It raises what is not as the page says.
"""

import shutil
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import boto3
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from tests.support.pages import ROOT, blocks_of

PAGE: Final = ROOT / "docs" / "how-to" / "delta-and-iceberg.md"
COUNT: Final = 100
_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    # `foreachBatch` has a session of its own: this one would see the table as it was, for up to 30 s.
    "spark.sql.catalog.lake.cache-enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Tables:
    """The page's blocks, each with tables and a checkpoint of its own.

    Args:
        spark: A session with the jars.
        directory: Where everything is.
        read: Reads the stream from its beginning.
        put: Puts records with these numbers.
    """

    def __init__(
        self, spark: SparkSession, directory: Path, read: Callable[..., DataFrame], put: Callable[[Iterable[int]], None]
    ) -> None:
        self._spark, self._directory, self._read, self._put = spark, directory, read, put
        self._names: dict[str, Any] = {"spark": spark, "kinesis_efo": kinesis_efo}

    def run(self) -> None:
        """Run the page."""
        delta_sink, iceberg_sink, delta_append, iceberg_append, merge = (
            each.text for each in blocks_of(PAGE, "python")
        )
        delta_sql, iceberg_sql = (each.text for each in blocks_of(PAGE, "sql"))
        self._sink(delta_sink, "sink")
        self._sink(iceberg_sink, "sink")
        for sql in (delta_sql, iceberg_sql):
            for statement in filter(str.strip, self._in(sql, "sink").split(";")):
                self._spark.sql(statement).collect()
        assert self._delta("sink").count() == self._iceberg("sink").count() == COUNT
        self._spark.createDataFrame([], self._read().schema).writeTo("lake.append.orders").create()
        self._append(delta_append, partial(self._delta, "append"), COUNT)
        self._append(iceberg_append, partial(self._iceberg, "append"), COUNT + 1)
        self._merge(merge, "default.newest", "delta")
        self._merge(merge, "lake.merge.newest", "iceberg")

    def _in(self, text: str, step: str) -> str:
        """A block with the tables of a step."""
        text = text.replace("s3://lake", f"{self._directory}/{step}").replace("lake.db.", f"lake.{step}.")
        return text.replace("'db.", f"'{step}.")

    def _delta(self, step: str) -> DataFrame:
        return self._spark.read.format("delta").load(f"{self._directory}/{step}/orders")

    def _iceberg(self, step: str) -> DataFrame:
        return self._spark.table(f"lake.{step}.orders")

    def _sink(self, block: str, step: str) -> None:
        table = partial(self._iceberg if "iceberg" in block else self._delta, step)
        checkpoint = self._directory / step / "checkpoints" / "orders"
        ending = self._in(block, step).replace(".option(", ".trigger(availableNow=True).option(")
        for _ in range(2):
            exec(ending, self._names)
            self._ended(table, COUNT)
            _forget_the_last_commit(checkpoint)
        shutil.rmtree(checkpoint)

    def _append(self, block: str, table: Callable[[], DataFrame], expected: int) -> None:
        exec(self._in(block, "append"), self._names)
        for _ in range(2):
            self._start(self._names["append"])
            self._ended(table, expected)
            _forget_the_last_commit(self._checkpoint)
        # With a new checkpoint, the page says, micro-batches are skipped without an error; under a new name they are not. `write_once` has the
        # query's id for a name.
        self._put([COUNT])
        for name, count in (("orders-1", expected), ("orders-2", 2 * expected + 1))["orders-1" not in block :]:
            shutil.rmtree(self._checkpoint)
            exec(self._in(block, "append").replace("orders-1", name), self._names)
            self._start(self._names["append"])
            self._ended(table, count)
        shutil.rmtree(self._checkpoint)

    def _merge(self, block: str, table: str, using: str) -> None:
        self._spark.sql(f"CREATE TABLE {table} (partitionKey string, data binary, place string) USING {using}")
        exec(block.replace("lake.db.newest", table), self._names)
        for _ in range(2):
            self._start(self._names["upsert"])
            self._ended(partial(self._spark.table, table), 10)
            newest = {row.partitionKey: int(row.data) for row in self._spark.table(table).collect()}
            assert newest == {f"key {number}": COUNT - 10 + number for number in range(1, 10)} | {"key 0": COUNT}
            _forget_the_last_commit(self._checkpoint)
        shutil.rmtree(self._checkpoint)

    @property
    def _checkpoint(self) -> Path:
        return self._directory / "checkpoint"

    def _start(self, function: Callable[[DataFrame, int], None]) -> None:
        writer = self._read().writeStream.foreachBatch(function).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self._checkpoint)).start()

    def _ended(self, table: Callable[[], DataFrame], count: int) -> None:
        for query in self._spark.streams.active:
            query.awaitTermination()
        assert table().count() == count


def _forget_the_last_commit(checkpoint: Path) -> None:
    """As after a kill between the table's commit and Spark's: the micro-batch is repeated."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def main(manifest: str, stream: str, directory: Path, jars: list[str]) -> None:
    """Run the page on a stream."""
    kinesis = boto3.client("kinesis")

    def put(numbers: Iterable[int]) -> None:
        records = [{"PartitionKey": f"key {number % 10}", "Data": str(number)} for number in numbers]
        assert kinesis.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0

    builder = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(jars))
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.catalog.lake.warehouse", str(directory / "iceberg"))
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    read_stream = kinesis_efo.read_stream

    def read(_: object = spark, **given: Any) -> DataFrame:
        return read_stream(
            spark, **{"startingPosition": "TRIM_HORIZON", "catchUp": True, **given, "manifest": manifest}
        )

    kinesis_efo.read_stream = read  # type: ignore[assignment]
    put(range(COUNT))
    Tables(spark, directory, read, put).run()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
