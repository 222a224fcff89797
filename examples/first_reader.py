"""Print what comes into the streams of an application.

    spark-submit examples/first_reader.py manifest=ssm:///kinesis-efo/dev/lake streams=orders

Arguments are options of the source (docs/options.md) as NAME=VALUE. Without a checkpoint, every start begins with what
comes from then on; `startingPosition=TRIM_HORIZON` begins with the oldest record that is kept. Ctrl-C ends it.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from kinesis_efo import job, read_stream

options = dict(argument.split("=", 1) for argument in sys.argv[1:])
spark = SparkSession.builder.appName("first reader").getOrCreate()
with job(spark):
    records = read_stream(spark, **options)
    texts = records.selectExpr("stream", "partitionKey", "approximateArrivalTimestamp", "cast(data as string) as text")
    texts.writeStream.format("console").option("truncate", False).start().awaitTermination()
