"""Reads the streams of the demo once more, from their beginning to their tips, and writes the rows to Parquet.

spark-submit demo/batch_read.py MANIFEST OUTPUT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import kinesis_efo

if __name__ == "__main__":
    manifest, output = sys.argv[1:]
    spark = SparkSession.builder.appName("batch read").getOrCreate()
    # No query reads beside it, so it takes all that GetRecords allows.
    rows = kinesis_efo.read(spark, manifest=manifest, streams="*", maxShardRate="2m")
    rows.select("stream", "partitionKey", "data").write.partitionBy("stream").parquet(output)
    spark.stop()
