"""What users read when something is wrong: at `load()`, and as their query's exception."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from kinesis_efo.errors import LeaseTableError, ManifestError, OptionsError
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_for_rows, wait_until

MakeWorld = Callable[..., World]


def refused(spark: SparkSession, **options: str) -> str:
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("kinesis-efo").options(**options).load()
    return str(caught.value)


@pytest.mark.spark
def test_spark_finds_the_source_by_itself(spark: SparkSession, world: MakeWorld) -> None:
    df = spark.readStream.format("kinesis-efo").options(**world().options).load()
    assert df.columns == [
        "data", "partitionKey", "sequenceNumber", "subSequenceNumber", "approximateArrivalTimestamp", "stream", "shardId",
    ]  # fmt: skip


@pytest.mark.spark
def test_wrong_options_are_told_at_load(spark: SparkSession) -> None:
    message = refused(spark, manifest="m.json", bufferBytes="lots", readMode="push", bufferByte="1")
    assert "OptionsError" in message
    assert "kinesis-efo option 'bufferBytes' must be a size such as 256m; got 'lots'" in message
    assert "kinesis-efo option 'readMode' must be efo or polling; got 'push'" in message
    assert "; did you mean 'bufferBytes'?" in message


@pytest.mark.spark
@pytest.mark.parametrize("open_source", [kinesis_efo.read_stream, kinesis_efo.read])
def test_the_facade_raises_the_librarys_own_errors(
    spark: SparkSession, world: MakeWorld, open_source: Callable[..., DataFrame]
) -> None:
    with pytest.raises(OptionsError, match="'bufferBytes' must be a size such as 256m; got 'lots'"):
        open_source(spark, manifest="m.json", bufferBytes="lots")
    with pytest.raises(ManifestError, match=r"manifest /no/such\.json: there is no such file"):
        open_source(spark, manifest="/no/such.json")
    with pytest.raises(ManifestError, match="option 'streams' names 'order', but the manifest"):
        open_source(spark, streams="order", **world().options)


@pytest.mark.spark
def test_a_missing_manifest_is_told_at_load(spark: SparkSession) -> None:
    assert "ManifestError: manifest /no/such.json: there is no such file" in refused(spark, manifest="/no/such.json")
    assert "kinesis-efo needs option 'manifest'" in refused(spark)


@pytest.mark.spark
def test_an_unknown_stream_is_told_at_load(spark: SparkSession, world: MakeWorld) -> None:
    message = refused(spark, **world().options, streams="order")
    assert "kinesis-efo option 'streams' names 'order', but the manifest" in message


@pytest.mark.long
@pytest.mark.spark43
def test_a_schema_of_the_users_own_is_refused(spark: SparkSession, world: MakeWorld, queries: Queries) -> None:
    reader = spark.readStream.format("kinesis-efo").options(**world().options)
    with pytest.raises(Exception, match="kinesis-efo has the columns struct<data:binary") as caught:  # noqa: PT012
        query = queries.start(reader.schema("partitionKey string, data binary").load(), "own")
        query.processAllAvailable()
    assert "Leave .schema(...) out" in str(caught.value)


@pytest.mark.spark
def test_a_missing_lease_table_is_the_querys_exception(world: MakeWorld, queries: Queries) -> None:
    w = world()
    w.dynamodb.delete_table(TableName=w.lease_table)
    query = queries.start(queries.load(w), "tableless")
    wait_until(lambda: query.exception() is not None, 90)
    found = kinesis_efo.cause(query.exception())
    assert isinstance(found, LeaseTableError)
    message = str(found)
    assert w.lease_table in message and "application 'lake'" in message


@pytest.mark.spark43
def test_a_consumer_deleted_while_reading_is_the_querys_exception(world: MakeWorld, queries: Queries) -> None:
    w = world()
    w.put([("k", b"1")])
    query = queries.start(queries.load(w), "consumerless")
    wait_for_rows(query, 1)
    w.kinesis.deregister_stream_consumer(ConsumerARN=w.consumers["orders"])
    wait_until(lambda: query.exception() is not None, 60)
    message = str(query.exception())
    assert (
        f"ConsumerNotFoundError: stream 'orders', shard shardId-000000000000: consumer {w.consumers['orders']}"
        in message
    )
    assert f"does not exist (any more); its ARN came from {w.manifest}" in message


@pytest.mark.long
@pytest.mark.spark40
def test_a_checkpoint_of_another_application_is_told(world: MakeWorld, queries: Queries) -> None:
    def mixed(df: DataFrame, batch: int) -> None:
        df.count()

    one, other = world({"orders": 1}), world({"clicks": 1})
    one.put([("k", b"1")])
    query = queries.start(queries.load(one), mixed)
    wait_for_rows(query, 1)
    query.stop()
    query = queries.start(queries.load(other), mixed)
    wait_until(lambda: query.exception() is not None, 60)
    assert "the query's checkpoint names stream 'orders', but the query reads only 'clicks'" in str(query.exception())
