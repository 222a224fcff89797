"""Read a stream once and write three tables: orders, what is no order as it came, and how many orders each minute has.

    spark-submit examples/several_tables.py output=s3://lake checkpoint=s3://lake/checkpoints \
        manifest=ssm:///kinesis-efo/dev/lake streams=orders

Other arguments are options of the source as NAME=VALUE. If a query fails, the program ends; SIGTERM ends it in order.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from kinesis_efo import job, read_stream

# As text: as a decimal, from_json changes "1,50" to 150.00 without an error.
SCHEMA = "id string, customer string, amount string, placed string, unread string"
AMOUNT = "if(order.amount rlike '^-?[0-9]+[.]?[0-9]*$', try_to_number(order.amount, 'MI9999999990.99'), null) as amount"
PLACED = "try_to_timestamp(order.placed, \"yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX\") as placed"
GOOD = """order is not null and order.unread is null and is_valid_utf8(string(data))
and (order.amount is null or amount is not null) and (order.placed is null or placed is not null)"""
PLACE = ("approximateArrivalTimestamp", "shardId", "sequenceNumber", "subSequenceNumber")
DELAY, SKEW = "10 minutes", "1m"  # shards further ahead would make orders of the others late

options: dict[str, Any] = dict(argument.split("=", 1) for argument in sys.argv[1:])
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
    rows = rows.selectExpr("*", "order.id", "order.customer", AMOUNT, PLACED)
    good = rows.where(GOOD).drop("order", "data")
    minutes = good.withWatermark("placed", DELAY).groupBy(F.window("placed", "1 minute").alias("minute")).count()
    write(good, "orders")
    write(rows.where(f"not ({GOOD})").select("data", *PLACE), "malformed")
    write(minutes.select("minute.start", "count"), "orders_per_minute")
    spark.streams.awaitAnyTermination()
