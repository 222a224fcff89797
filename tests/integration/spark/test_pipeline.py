"""A Declarative Pipeline reads a stream, whether the read is described in a function of the pipeline or when its file is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.spark.conftest import CREDENTIALS
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
"""


def test_a_pipeline_reads_streams_of_functions_and_imports(world: Callable[..., World], tmp_path: Path) -> None:
    w = world({"orders": 1, "clicks": 1})
    for stream in ("orders", "clicks"):
        w.put([(str(number), b"%d" % number) for number in range(20)], stream)
    place = tmp_path / "pipeline"
    (place / "definitions").mkdir(parents=True)
    (place / "spark-pipeline.yml").write_text(SPEC.format(place=place.as_uri()))
    definitions = DEFINITIONS.format(manifest=str(w.manifest), endpoint=w.aws.endpoint_url)
    (place / "definitions" / "tables.py").write_text(definitions)
    ran = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "run"],
        cwd=place,
        env={
            **os.environ,
            **CREDENTIALS,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    for table in ("orders", "clicks"):
        files = list((place / "spark-warehouse" / table).glob("*.parquet"))
        assert sorted(row["data"] for file in files for row in pq.ParquetFile(file).read().to_pylist()) == sorted(
            b"%d" % number for number in range(20)
        )
