"""Turn JSON records into the columns of Parquet files, each record exactly once.

    spark-submit examples/json_to_columns.py output=s3://lake/orders checkpoint=s3://lake/checkpoints/orders \
        manifest=ssm:///kinesis-efo/dev/lake streams=orders

All other arguments are options of the source (docs/options.md) as NAME=VALUE. A record that is no JSON, or does not fit
the schema, is kept as it is in the column `malformed`. SIGTERM or Ctrl-C end the program after its micro-batch.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kinesis_efo import job, read_stream

SCHEMA = "id string, customer string, amount decimal(12, 2), placed timestamp, malformed string"

options = dict(argument.split("=", 1) for argument in sys.argv[1:])
output, checkpoint = options.pop("output"), options.pop("checkpoint")
interval = options.pop("interval", "1 minute")  # longer means larger files

spark = SparkSession.builder.appName("json to columns").getOrCreate()
with job(spark):
    records = read_stream(spark, **options)
    text = F.col("data").cast("string")
    parsed = F.from_json(text, SCHEMA, {"columnNameOfCorruptRecord": "malformed"})
    rows = records.select(parsed.alias("order"), text.alias("text"), "approximateArrivalTimestamp")
    # Spark makes nothing at all of a blank record, not even a malformed one.
    blank = F.when(F.col("order").isNull(), F.col("text"))
    rows = rows.select("order.*", blank.alias("blank"), "approximateArrivalTimestamp")
    orders = rows.withColumn("malformed", F.coalesce("malformed", "blank")).drop("blank")
    files = orders.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    files.trigger(processingTime=interval).start().awaitTermination()
