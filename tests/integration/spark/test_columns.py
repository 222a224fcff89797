"""The helpers for rows give the right values on both versions of Spark."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

import kinesis_efo
from kinesis_efo.errors import ConfigurationError
from tests.support.messages import raises

pytestmark = pytest.mark.spark
SCHEMA = "id string, amount decimal(12, 2), n int, x double, ok boolean, at timestamp, day date, lines array<struct<sku: string, count: int>>"
GOOD = [
    b'{"id": "1", "amount": "12.50", "n": -5, "x": 1e-3, "ok": true, "at": "2027-01-31T12:00:00.5+01:00", "day": "2027-01-31"}',
    b'{"amount": 12345678.90, "lines": [{"sku": "a", "count": 2}, {"sku": null}]}\n',
    b'{"amount": "1234567890.12", "lines": [], "other": {"deep": [1]}}',
    b"{}",
]  # fmt: skip
MALFORMED = [
    None, b"", b" ", b"no", b"5", b"null", b'"x"', b'[{"id": "1"}]', b'{"id": "1"}{"id": "2"}', b'{"id": "1"} x', b'{"id": "1"', b'{"id": "\xff"}',
    b'{"amount": "1,50"}', b'{"amount": 1.505}', b'{"amount": "12345678901"}', b'{"amount": "much"}', b'{"n": 1.5}', b'{"n": 3000000000}',
    b'{"x": "1,5"}', b'{"ok": "yes"}', b'{"at": "2027-01-31"}', b'{"at": "2027-01-31T12:00:00"}', b'{"at": 1700000000}', b'{"day": "2027-02-30"}',
    b'{"lines": [{"count": "2x"}]}', b'{"lines": {"count": 2}}', b'{"lines": ["x"]}', b'{"id": "1"},{"id": "2"}',
    b'{"n": "12\\n"}', b'{"amount": "1.50\\n"}', b'{"ok": "true\\n"}', b'{"day": "2027-01-31\\n"}',
]  # fmt: skip


def given(spark: SparkSession, *data: bytes | None) -> DataFrame:
    return spark.createDataFrame([(each, "shardId-0") for each in data], "data binary, shardId string")


@pytest.mark.parametrize("ansi", [True, False])
def test_json_becomes_exact_values_or_malformed(spark: SparkSession, ansi: bool) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        found = kinesis_efo.from_json(given(spark, *GOOD, *MALFORMED), SCHEMA).collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert [row.malformed for row in found] == [None] * len(GOOD) + [*MALFORMED]
    first, second, third, empty = found[: len(GOOD)]
    at = datetime(2027, 1, 31, 11, 0, 0, 500_000, UTC).astimezone().replace(tzinfo=None)
    assert first[:7] == ("1", Decimal("12.50"), -5, 0.001, True, at, date(2027, 1, 31))
    assert (second.amount, third.amount) == (Decimal("12345678.90"), Decimal("1234567890.12"))
    assert second.lines == [Row(sku="a", count=2), Row(sku=None, count=None)]
    assert (third.lines, empty[:8], empty.shardId) == ([], (None,) * 8, "shardId-0")


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("a decimal(38, 2)", '{"a": "1.505"}'),
        ("a decimal(38, 0)", '{"a": "1.9"}'),
        ("a decimal(37, 2)", '{"a": "1.50001"}'),
        ("a decimal(20, 2)", '{"a": 9999999999999999.99}'),
        ("a decimal(3, 2)", '{"a": 0.99999999999999999}'),
        ("a float", '{"a": 1e39}'),
        ("a double", '{"a": "1E400"}'),
        ("a int", '{"a": 1}]{"a": 2}'),
        ("a array<int>", '{"a": "[1] foo"}'),
        ("a struct<b: int>", r'{"a": "{\"b\": 1}]{\"b\": 2"}'),
    ],
)
def test_value_that_spark_would_change_is_malformed(spark: SparkSession, schema: str, data: str) -> None:
    (found,) = kinesis_efo.from_json(given(spark, data.encode()), schema).collect()
    assert found.malformed == data.encode()


def test_rounded_json_numbers_are_malformed(spark: SparkSession) -> None:
    data = (
        b'{"a": 0.1234567890123456789}',
        b'{"a": 12345678.901234567891}',
        b'{"a": 100000000000000001e-2}',
        b'{"a": 9999999999999999e0}',
        b'{"a": "0.1234567890123456789"}',
        b'{"a": 0.125}',
    )
    found = kinesis_efo.from_json(given(spark, *data), "a decimal(38, 19)").collect()
    assert [row.a for row in found[4:]] == [Decimal("0.1234567890123456789"), Decimal("0.1250000000000000000")]
    assert [row.malformed for row in found] == [*data[:4], None, None]


def test_impossible_schemas_are_refused(spark: SparkSession) -> None:
    with raises(ConfigurationError, "from_json: the type binary is not possible; read it as a string"):
        kinesis_efo.from_json(given(spark), "a binary")
    with raises(ConfigurationError, "from_json: 'shardId' would appear twice; rename it in `records`"):
        kinesis_efo.from_json(given(spark), "shardId string")
    with raises(
        ConfigurationError, "from_json: schema must be fields such as 'id string, count int'; got 'array<int>'"
    ):
        kinesis_efo.from_json(given(spark), "array<int>")


def test_positions_sort_like_records(spark: SparkSession) -> None:
    numbers = [
        ("9", 0),
        ("10", 0),
        ("10", 2),
        ("10", 11),
        ("49590338271490256608559692538361571095921575989136588898", 0),
    ]
    rows = spark.createDataFrame([*reversed(numbers)], "sequenceNumber string, subSequenceNumber long")
    assert [tuple(row) for row in rows.orderBy(kinesis_efo.position()).collect()] == numbers


class Delta(DataSource):
    """Stands in for Delta Lake: keeps the rows of each transaction in a file named after it, unless the file is there."""

    @classmethod
    def name(cls) -> str:
        return "delta"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        assert not overwrite
        return Transaction(Path(self.options["path"]) / f"{self.options['txnappid']} {self.options['txnversion']}")


class Transaction(DataSourceWriter):
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        with self.path.open("a") as out:
            out.writelines(f"{row.id}\n" for row in iterator)
        return WriterCommitMessage()


def test_write_once_names_query_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(Delta)
    spark.range(3).write.parquet(f"{tmp_path}/in")
    (tmp_path / "table").mkdir()

    def append(rows: DataFrame, batch_id: int) -> None:
        kinesis_efo.write_once(rows, batch_id).save(f"{tmp_path}/table")
        kinesis_efo.write_once(rows.limit(1), batch_id, "first").save(f"{tmp_path}/table")

    records: Any = spark.readStream.schema("id long").parquet(f"{tmp_path}/in")
    query = records.writeStream.foreachBatch(append).option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = query.trigger(availableNow=True).start()
    query.awaitTermination()
    written = {path.name: sorted(path.read_text().split()) for path in (tmp_path / "table").iterdir()}
    assert written.pop(f"{query.id} 0") == ["0", "1", "2"]
    assert [*map(len, written.values())] == [1]
    assert [*written] == [f"{query.id}-first 0"]
    with raises(
        ConfigurationError,
        "write_once: the query is unknown here; call it in foreachBatch of a classic session, or set Delta's options txnAppId and "
        "txnVersion yourself",
    ):
        kinesis_efo.write_once(spark.range(1), 0)
