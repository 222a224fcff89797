"""How to test a job of your own: `pytest` in this folder. The fixtures `kinesis_efo_streams` and `kinesis_efo_local_aws` come with kinesis-efo[local]."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo
from kinesis_efo_local import LocalAws
from kinesis_efo_local.pytest_plugin import LocalKinesis


def big_orders(records: DataFrame) -> DataFrame:
    """The job: orders of 100 and more."""
    return kinesis_efo.from_json(records, "id string, amount decimal(12, 2)").where("amount >= 100")


# Spark asks for the local AWS, so that its processes know it.
@pytest.fixture(scope="session")
def spark(kinesis_efo_local_aws: LocalAws) -> Iterator[SparkSession]:
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


@pytest.mark.kinesis_efo(streams={"orders": 2})
def test_big_orders_arrive_once(spark: SparkSession, kinesis_efo_streams: LocalKinesis, tmp_path: Path) -> None:
    kinesis_efo_streams.put("orders", [{"id": "1", "amount": 20}, {"id": "2", "amount": 250}, "no JSON"])

    def run() -> list[str]:
        # With `availableNow`, Spark before 4.2 runs one micro-batch of whatever has come by then; `catchUp` has it read everything.
        frame = kinesis_efo.read_stream(
            spark, manifest=kinesis_efo_streams.manifest, startingPosition="TRIM_HORIZON", catchUp=True
        )
        query = (
            big_orders(frame)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(row.id for row in spark.read.parquet(str(tmp_path / "out")).collect())

    assert run() == ["2"]
    kinesis_efo_streams.put("orders", [{"id": "3", "amount": 100}])
    # The job starts again, and goes on where it was.
    assert run() == ["2", "3"]
