"""Read a stream once and write three tables: orders, what is no order as it came, and how many orders each minute has.

    spark-submit examples/several_tables.py output=s3://lake checkpoint=s3://lake/checkpoints \
        manifest=ssm:///kinesis-efo/dev/lake streams=orders

All other arguments are options of the source (docs/options.md) as NAME=VALUE. Each table has a query, which has a
checkpoint and a trigger of its own; the queries share one lease, one subscription for each shard and one buffer. If one
fails, the program ends, and goes on with all of them at its next start. SIGTERM or Ctrl-C end it after the micro-batches.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kinesis_efo import job, read_stream

SCHEMA = "id string, customer string, amount decimal(12, 2), placed timestamp, unread string"
# Spark makes nothing at all of a blank record, and replaces bytes that are not UTF-8.
GOOD = "order is not null and order.unread is null and is_valid_utf8(string(data))"
PLACE = ("approximateArrivalTimestamp", "shardId", "sequenceNumber", "subSequenceNumber")
DELAY = "10 minutes"  # a minute is counted once an order was placed so long after it
SKEW = "1m"  # shards further ahead would make orders of the others late

options = dict(argument.split("=", 1) for argument in sys.argv[1:])
output, checkpoint = options.pop("output"), options.pop("checkpoint")
interval = options.pop("interval", "1 minute")  # longer means larger files


def write(rows: DataFrame, table: str) -> None:
    """Start the query that writes a table."""
    files = rows.writeStream.queryName(table).format("parquet").option("path", f"{output}/{table}")
    files.option("checkpointLocation", f"{checkpoint}/{table}").trigger(processingTime=interval).start()


spark = SparkSession.builder.appName("several tables").getOrCreate()
with job(spark):
    records = read_stream(spark, **{"maxShardSkew": SKEW, **options})
    order = F.from_json(F.col("data").cast("string"), SCHEMA, {"columnNameOfCorruptRecord": "unread"})
    rows = records.select(order.alias("order"), "data", *PLACE)
    good = rows.where(GOOD).select("order.*", *PLACE).drop("unread")
    minutes = good.withWatermark("placed", DELAY).groupBy(F.window("placed", "1 minute").alias("minute")).count()
    write(good, "orders")
    write(rows.where(f"not ({GOOD})").select("data", *PLACE), "malformed")
    write(minutes.select("minute.start", "count"), "orders_per_minute")
    spark.streams.awaitAnyTermination()
