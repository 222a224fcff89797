"""Reads the stream of a trial, and writes when each record arrived as a row.

spark-submit demo/trial_reader.py MANIFEST STREAM SINCE TRIAL DIRECTORY
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import get_json_object

import kinesis_efo

if __name__ == "__main__":
    manifest, stream, since, trial, directory = sys.argv[1:]
    place = Path(directory, "rows")
    place.mkdir(parents=True, exist_ok=True)

    def write(rows: DataFrame, batch: int) -> None:
        """Write a file for the micro-batch. A repeated one replaces its file."""
        found = rows.where(get_json_object("text", "$.trial") == trial).collect()
        now = time.time()
        written = Path(directory, f"{batch}.writing")
        written.write_text(json.dumps([[row.shardId, *json.loads(row.text)["record"], now] for row in found]))
        written.rename(place / f"{batch}.json")

    with kinesis_efo.job(SparkSession.builder.appName("trial")) as spark:
        records = kinesis_efo.read_stream(spark, manifest=manifest, streams=stream, startingPosition=since)
        texts = records.selectExpr("shardId", "cast(data as string) as text")
        writer = texts.writeStream.foreachBatch(write).option("checkpointLocation", str(Path(directory, "checkpoint")))
        writer.start().awaitTermination()
