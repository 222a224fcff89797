"""What users read when something is wrong: at `load()`, and as their query's exception."""

from collections.abc import Callable

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import kinesis_efo
from kinesis_efo.driver.reason import reason
from kinesis_efo.errors import LeaseTableError, OptionsError
from tests.integration.spark.conftest import Queries
from tests.support.world import World, wait_for_rows, wait_until

MakeWorld = Callable[..., World]


@pytest.mark.spark
def test_wrong_options_are_reported_at_load(spark: SparkSession) -> None:
    wrong = {"manifest": "m.json", "bufferBytes": "lots", "readMode": "push", "bufferByte": "1"}
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("kinesis-efo").options(**wrong).load()
    found = kinesis_efo.cause(caught.value)
    assert isinstance(found, OptionsError)
    assert len(found.faults) == 3


@pytest.mark.spark40
def test_a_missing_lease_table_fails_the_query(world: MakeWorld, queries: Queries) -> None:
    w = world()
    w.dynamodb.delete_table(TableName=w.lease_table)
    query = queries.start(queries.load(w), "tableless")
    wait_until(lambda: query.exception() is not None, 90)
    found = kinesis_efo.cause(query.exception())
    assert isinstance(found, LeaseTableError)
    assert w.lease_table in str(found)
    assert found.remedy is not None
    assert str(found).endswith(found.remedy)


@pytest.mark.long
@pytest.mark.spark
def test_a_killed_planner_is_explained(world: MakeWorld, queries: Queries) -> None:
    w = world()
    w.put([("k", b"1")])
    query = queries.start(queries.load(w, readMode="polling"), "killed")
    wait_for_rows(query, 1)
    w.reader().parent().kill()
    error = wait_until(query.exception, 60, "the query to notice")
    assert "killed a Python process of Spark" in reason(error), str(error)[:2000]
