"""DataFrames into Kinesis: through Spark, and a task's part of it alone."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kinesis_efo.driver.facade import register
from kinesis_efo.driver.reason import reason
from kinesis_efo.errors import ConfigurationError, ManifestError, OptionsError, RecordRefusedError, StreamNotFoundError
from kinesis_efo.producer import Producer
from kinesis_efo.spark.sink import KinesisWriter, ProducerPool, WriteCounts
from kinesis_efo_local import LocalAws, Settings
from tests.support.messages import raises
from tests.support.pages import ROOT
from tests.support.world import World, stored

MakeWorld = Callable[..., World]
DATA = StructType([StructField("data", StringType())])
# `StructType.add` would change the other one.
WITH_STREAM = StructType([*DATA.fields, StructField("stream", StringType())])


def options_of(world: World, **more: str) -> dict[str, str]:
    return {"manifest": str(world.manifest), "endpointUrl": world.aws.endpoint_url, **more}


@pytest.mark.spark40
def test_a_batch_goes_to_its_rows_streams(spark: SparkSession, world: MakeWorld) -> None:
    made = world({"orders": 2, "clicks": 1})
    register(spark)
    number = functions.col("id")
    rows = spark.range(3_000, numPartitions=3).select(
        functions.concat(functions.lit("d"), number).cast("binary").alias("data"),
        functions.when(number % 2 == 0, functions.concat(functions.lit("k"), number)).alias("partitionKey"),
        functions.when(number % 3 == 0, functions.lit("clicks")).alias("stream"),
        functions.when(number == 1, functions.lit(str((1 << 128) - 1))).alias("explicitHashKey"),
    )
    rows.write.format("kinesis-efo").options(**options_of(made, stream="orders")).mode("append").save()
    clicks = {record["Data"]: record["PartitionKey"] for record in made.records("clicks")}
    orders = {record["Data"]: record["PartitionKey"] for record in made.records()}
    assert clicks.keys() == {f"d{number}".encode() for number in range(0, 3_000, 3)}
    assert orders.keys() == {f"d{number}".encode() for number in range(3_000) if number % 3}
    for found in (clicks, orders):
        for data, key in found.items():
            assert key == f"k{data[1:].decode()}" if int(data[1:]) % 2 == 0 else len(key) == 16
    assert len(set(orders.values())) == len(orders), "random keys repeat"


@pytest.mark.spark43
def test_a_streaming_query_writes_rows_once_across_restarts(
    spark: SparkSession, world: MakeWorld, tmp_path: Path
) -> None:
    made = world({"orders": 2})
    register(spark)

    def run(first: int) -> None:
        spark.range(first, first + 500).select(functions.col("id").cast("string").alias("data")).write.mode(
            "append"
        ).parquet(str(tmp_path / "in"))
        query = (
            spark.readStream.schema(DATA)
            .parquet(str(tmp_path / "in"))
            .writeStream.format("kinesis-efo")
            .options(**options_of(made, aggregate="false", linger="5ms"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    run(0)
    assert Counter(int(record["Data"]) for record in made.records()) == Counter(range(500))
    run(500)
    assert Counter(int(record["Data"]) for record in made.records()) == Counter(range(1_000))


@pytest.mark.long
@pytest.mark.spark40
def test_the_documented_recipe_leaves_each_record_once(spark: SparkSession, world: MakeWorld, tmp_path: Path) -> None:
    recipe: dict[str, Any] = {}
    text = (Path(__file__).resolve().parents[3] / "docs" / "writing.md").read_text()
    for block in re.findall(r"```python\n(from pyspark.*?)```", text, re.DOTALL):
        exec(block, recipe)
    made = world({"orders": 1})
    register(spark)
    number = functions.col("id")
    rows = spark.range(30).select(
        functions.lit("flights").alias("stream"),
        functions.lit("shardId-000000000000").alias("shardId"),
        # Aggregated records share a sequence number.
        (number / 3).cast("long").cast("string").alias("sequenceNumber"),
        (number % 3).alias("subSequenceNumber"),
        number.cast("string").cast("binary").alias("data"),
        number.cast("string").alias("partitionKey"),
    )
    # As if the tasks had been tried again.
    for _ in range(2):
        recipe["with_id"](rows).write.format("kinesis-efo").options(**options_of(made)).mode("append").save()
    records = [(record["Data"], record["ApproximateArrivalTimestamp"]) for record in made.records()]
    assert len(records) == 60
    records += [(b"of another writer", records[0][1]), (b"", records[0][1])]
    schema = "data binary, approximateArrivalTimestamp timestamp"
    spark.createDataFrame(records, schema).write.parquet(str(tmp_path / "in"))
    query = (
        recipe["once"](spark.readStream.schema(schema).parquet(str(tmp_path / "in")))
        .writeStream.format("memory")
        .queryName("once")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(int(row.event) for row in spark.table("once").collect()) == list(range(30))


@pytest.mark.spark
def test_refusals_of_spark_are_explained(spark: SparkSession, world: MakeWorld, tmp_path: Path) -> None:
    made = world({"orders": 1})
    register(spark)
    rows = spark.range(1).select(functions.lit("x").alias("data"))
    numbers = spark.range(1).select(functions.col("id").alias("data"))
    with pytest.raises(AnalysisException) as column:
        numbers.write.format("kinesis-efo").options(**options_of(made)).mode("append").save()
    assert "column 'data' must be binary or string; got bigint" in reason(column.value)
    with pytest.raises(AnalysisException) as default_mode:
        rows.write.format("kinesis-efo").options(**options_of(made)).save()
    assert reason(default_mode.value) == "the sink kinesis-efo can only append: write with .mode('append')"
    query = (
        spark.readStream.format("rate").load().select(functions.lit("x").alias("data"))
        .writeStream.format("kinesis-efo").options(**options_of(made)).outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )  # fmt: skip
    with pytest.raises(StreamingQueryException) as update:
        query.awaitTermination(60)
    assert "foreachBatch" in reason(update.value)
    without_job = "requirement failed: kinesis-efo does not support Update mode"
    assert without_job in str(update.value)
    assert without_job in (ROOT / "docs/options.md").read_text(), "users without kinesis_efo.job find it on the page"
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "0")
    try:
        with pytest.raises(AnalysisException, match="arrow batch size") as unlimited:
            spark.read.format("kinesis-efo").options(**options_of(made)).load().collect()
    finally:
        spark.conf.set(name, str(before))
    assert f"with {name} at 0" in reason(unlimited.value)


# -- a task's part, without Spark around it


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalAws]:
    with LocalAws(settings=Settings(read_limit=False, write_limit=True)) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        made: list[Producer] = []

        def producer(*given: Any, **more: Any) -> Producer:
            made.append(Producer(*given, **more))
            return made[-1]

        monkeypatch.setattr("kinesis_efo.spark.sink._pool", ProducerPool(producer=producer, sleep=lambda _: None))
        running.client("kinesis").create_stream(StreamName="orders", ShardCount=1)
        yield running
        for each in made:
            each.abort()


def task(schema: StructType = DATA, **options: str) -> KinesisWriter:
    return KinesisWriter.of({"stream": "orders", **options}, schema, overwrite=False)


def test_auto_distribution_gets_neither_aggregates_nor_hash_keys(
    aws: LocalAws, caplog: pytest.LogCaptureFixture
) -> None:
    kinesis = aws.client("kinesis")
    kinesis.create_stream(
        StreamName="spread", StreamModeDetails={"StreamMode": "ON_DEMAND"}, RecordDistributionStrategy="AUTO"
    )
    schema = StructType([StructField(name, StringType()) for name in ("data", "partitionKey", "explicitHashKey")])
    rows = {
        "data": [str(number) for number in range(2_000)],
        "partitionKey": ["one", None] * 1_000,
        "explicitHashKey": ["7"] * 2_000,
    }
    writer = task(schema, stream="spread", aggregate="true", ordered="true")
    assert writer.write(iter([pa.RecordBatch.from_pydict(rows)])).records == 2_000
    assert aws.kinesis.calls("ListShards") == 0
    placed = stored(kinesis, "spread")
    assert [len(records) for records in placed.values()] == [500] * 4
    assert sorted(int(record["Data"]) for records in placed.values() for record in records) == list(range(2_000))
    assert "records are not aggregated or kept in order" in caplog.text


def batches(*values: Sequence[str | bytes | None]) -> Iterator[pa.RecordBatch]:
    for some in values:
        yield pa.record_batch({"data": pa.array(some)})


def count(aws: LocalAws) -> int:
    return sum(map(len, stored(aws.client("kinesis"), "orders").values()))


# Shows 87.
def test_a_task_returns_when_everything_is_acknowledged(aws: LocalAws) -> None:
    message = task().write(batches(*[[str(number) for number in range(500)]] * 4))
    assert count(aws) == 2_000
    assert message == WriteCounts(2_000, 2_000 * 16 + 4 * (10 + 2 * 90 + 3 * 400), 0)


def test_tasks_share_a_producer_until_one_fails(aws: LocalAws) -> None:
    for number in range(3):
        assert task().write(batches(["x"] * (number + 1))).records == number + 1
    assert aws.kinesis.calls("ListShards") == 1
    task(linger="10ms").write(batches(["x"]))
    assert aws.kinesis.calls("ListShards") == 2

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(["x"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        task().write(broken())
    task().write(batches(["y"]))
    assert aws.kinesis.calls("ListShards") == 3
    aws.client("kinesis").delete_stream(StreamName="orders")
    with pytest.raises(StreamNotFoundError, match="stream orders cannot be written to"):
        task().write(batches(["x"]))


def test_unwritable_records_fail_the_task_or_are_skipped(aws: LocalAws) -> None:
    rows = (["good"], ["x" * (1 << 20)], ["good"])
    with pytest.raises(RecordRefusedError, match="larger than the 1048576 bytes that the stream accepts"):
        task().write(batches(*rows))
    before = count(aws)
    assert task(failOnError="false").write(batches(*rows)) == WriteCounts(2, 2 * (4 + 16), 1)
    assert count(aws) == before + 2


def test_a_refused_row_is_named_by_its_place(aws: LocalAws) -> None:
    task().write(batches(["a", "b", "c"]))  # leaves its producer to the next task
    with pytest.raises(RecordRefusedError, match=r"record 1 \(partition key"):
        task().write(batches(["good"], ["x" * (1 << 20)]))
    aws.client("kinesis").create_stream(StreamName="clicks", ShardCount=1)
    schema = WITH_STREAM
    writer = KinesisWriter.of({}, schema, overwrite=False)
    batch = pa.record_batch({"data": ["a", "b", "x" * (1 << 20)], "stream": ["orders", "orders", "clicks"]})
    with pytest.raises(RecordRefusedError, match=r"record 2 \(partition key"):
        writer.write(iter([batch]))


def test_unusable_rows_are_named_or_skipped(aws: LocalAws, caplog: pytest.LogCaptureFixture) -> None:
    null = "row 1 of this task has null in column 'stream', and there is no default; set option 'stream'"
    cases: list[tuple[dict[str, list[Any]], str]] = [
        (
            {"data": ["x", None]},
            "record 1: data must be bytes or text; got null (filter such rows out) (partition key ...",
        ),
        ({"data": ["x", "y"], "stream": ["orders", None]}, null),
        ({"data": ["x", "y"], "stream": ["orders", ""]}, null),
        (
            {"data": ["x", "y"], "stream": ["orders", "a b"]},
            "row 1 of this task names stream 'a b', which is neither a stream's name nor its ARN",
        ),
        ({"data": ["x", "y"], "explicitHashKey": ["", "soon"]}, "...; got 'soon'"),
        ({"data": ["x", "y"], "partitionKey": ["", "k" * 257]}, "... a text of 1 to 256 characters; ..."),
    ]
    for columns, message in cases:
        caplog.clear()
        schema = StructType([StructField(name, StringType()) for name in columns])
        options = {} if "stream" in columns else {"stream": "orders"}
        batch = pa.record_batch({name: pa.array(values, pa.string()) for name, values in columns.items()})
        with raises(RecordRefusedError, message):
            KinesisWriter.of(options, schema, overwrite=False).write(iter([batch]))
        before = count(aws)
        written = KinesisWriter.of({**options, "failOnError": "false"}, schema, overwrite=False).write(iter([batch]))
        assert (written.records, written.refused, count(aws) - before) == (1, 1, 1)
        assert message.strip(".") in caplog.text


def test_rows_of_missing_streams_are_skipped_on_request(aws: LocalAws, caplog: pytest.LogCaptureFixture) -> None:
    rows = {"data": ["x", "y", "z"], "stream": ["orders", "nowhere", "nowhere"]}
    batch = pa.record_batch({name: pa.array(values, pa.string()) for name, values in rows.items()})
    with pytest.raises(StreamNotFoundError):
        KinesisWriter.of({}, WITH_STREAM, overwrite=False).write(iter([batch]))
    before = count(aws)
    written = KinesisWriter.of({"failOnError": "false"}, WITH_STREAM, overwrite=False).write(iter([batch]))
    assert (written.records, written.refused, count(aws) - before) == (1, 2, 1)
    assert "row 1 of this task and later ones skipped (failOnError is off)" in caplog.text
    with pytest.raises(StreamNotFoundError):  # the option's own stream
        task(stream="nowhere", failOnError="false").write(batches(["x"]))


def test_overwriting_is_refused() -> None:
    with raises(ConfigurationError, "kinesis-efo can only append: use mode('append') or outputMode('append')"):
        KinesisWriter.of({"stream": "orders"}, DATA, overwrite=True)


# Shows 85.
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            [("value", StringType())],
            "column 'data' (binary or string) is missing; column 'value' is not one of 'data', ...",
        ),
        ([("data", LongType())], "column 'data' must be binary or string; got bigint"),
        ([("data", BinaryType()), ("stream", LongType())], "column 'stream' must be string; got bigint"),
        ([("data", BinaryType()), ("data", BinaryType())], "column names repeat: data, data"),
    ],
)
def test_columns_are_checked(fields: list[tuple[str, Any]], message: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    with raises(ConfigurationError, f"kinesis-efo cannot write this DataFrame: {message}"):
        task(schema)


# Shows 85.
def test_the_target_must_be_known(world: MakeWorld, local_aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in local_aws.environment.items():
        monkeypatch.setenv(name, value)
    made = world({"orders": 1, "clicks": 1})
    with pytest.raises(OptionsError, match=r"needs option 'stream' or 'manifest', or a column 'stream'"):
        KinesisWriter.of({}, DATA, overwrite=False)
    with pytest.raises(OptionsError, match=r"'stream' must be one of 'clicks', 'orders' \(manifest"):
        KinesisWriter.of(options_of(made), DATA, overwrite=False)
    with pytest.raises(OptionsError, match=r"got 'order'"):
        KinesisWriter.of(options_of(made, stream="order"), DATA, overwrite=False)
    with pytest.raises(ManifestError, match="there is no such file"):
        KinesisWriter.of({"manifest": "nowhere.json"}, DATA, overwrite=False)
    with pytest.raises(ConfigurationError, match="must be a name or an ARN"):
        KinesisWriter.of({"stream": "a b"}, DATA, overwrite=False)
    writer = KinesisWriter.of(options_of(made, stream="orders"), WITH_STREAM, overwrite=False)
    batch = pa.record_batch({"data": ["x"], "stream": ["elsewhere"]})
    with raises(RecordRefusedError, "row 0 of this task names stream 'elsewhere'; manifest ... has 'clicks', 'orders'"):
        writer.write(iter([batch]))
    writer = KinesisWriter.of(options_of(made, stream="orders", failOnError="false"), WITH_STREAM, overwrite=False)
    rows = {"data": ["x", "y", "z"], "stream": ["elsewhere", "", "clicks"]}
    assert writer.write(iter([pa.RecordBatch.from_pydict(rows)])).refused == 1
    assert [len(made.records(name)) for name in ("orders", "clicks")] == [1, 1], "an empty name is the default's"
