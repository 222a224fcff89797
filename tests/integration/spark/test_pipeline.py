"""A Declarative Pipeline reads a stream, whether the read is described in a function, when its file is imported, or in Python for SQL."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.integration.spark.conftest import CREDENTIALS
from tests.support.commands import outcome
from tests.support.pages import blocks_of
from tests.support.world import World

pytestmark = [pytest.mark.spark43, pytest.mark.long]
SPEC = """\
name: lake
storage: {place}/storage
libraries:
  - glob:
      include: definitions/**
"""
DEFINITIONS = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

import kinesis_efo

spark = SparkSession.active()
options = dict(manifest={manifest!r}, endpointUrl={endpoint!r}, startingPosition="TRIM_HORIZON")
clicks_frame = kinesis_efo.read_stream(spark, streams="clicks", **options)


@dp.table
def orders():
    return kinesis_efo.read_stream(spark, streams="orders", **options)


@dp.table
def clicks():
    return clicks_frame


@dp.temporary_view
def seen():
    return kinesis_efo.read_stream(spark, streams="clicks", **options)
"""
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "declarative-pipelines.md"
(SQL,) = (each.text for each in blocks_of(PAGE, "sql"))


def pipeline(command: str, place: Path, **definitions: str) -> subprocess.CompletedProcess[str]:
    (place / "definitions").mkdir(parents=True)
    (place / "spark-pipeline.yml").write_text(SPEC.format(place=place.as_uri()))
    for name, text in definitions.items():
        (place / "definitions" / name.replace("_", ".")).write_text(text)
    return outcome(
        [Path(sys.executable).with_name("spark-pipelines"), command],
        seconds=240,
        cwd=place,
        env={
            **os.environ,
            **CREDENTIALS,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
        },
    )


def test_pipeline_reads_streams_of_python_and_sql(world: Callable[..., World], tmp_path: Path) -> None:
    w = world({"orders": 1, "clicks": 1})
    for stream in ("orders", "clicks"):
        w.put([(str(number), b"%d" % number) for number in range(20)], stream)
    place = tmp_path / "pipeline"
    definitions = DEFINITIONS.format(manifest=str(w.manifest), endpoint=w.aws.endpoint_url)
    # What SQL names in STREAM() is a table, or a view.
    of_view = SQL.replace("STREAM(orders)", "STREAM(seen)").replace("order_texts", "seen_texts")
    ran = pipeline("run", place, tables_py=definitions, texts_sql=SQL + of_view)
    assert ran.returncode == 0, ran.stderr[-4000:]
    numbers = sorted(b"%d" % number for number in range(20))
    for table in ("orders", "clicks"):
        assert sorted(row["data"] for row in rows(place, table)) == numbers
    for table in ("order_texts", "seen_texts"):
        assert sorted(row["text"].encode() for row in rows(place, table)) == numbers


def rows(place: Path, table: str) -> list[dict[str, Any]]:
    files = (place / "spark-warehouse" / table).glob("*.parquet")
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def test_sql_of_a_pipeline_cannot_name_the_source(tmp_path: Path) -> None:
    view = "CREATE TEMPORARY VIEW orders USING `kinesis-efo` OPTIONS (manifest 'm.json');"
    ran = pipeline("dry-run", tmp_path / "pipeline", view_sql=view)
    assert ran.returncode != 0
    assert "Unsupported plan CreateTempViewUsing parsed from SQL query" in ran.stdout
