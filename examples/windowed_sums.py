"""Add up orders per customer and minute of the order, and write each minute once, when it is complete.

    spark-submit examples/windowed_sums.py output=s3://lake/sums checkpoint=s3://lake/checkpoints/sums \
        manifest=ssm:///kinesis-efo/dev/lake streams=orders

All other arguments are options of the source (docs/options.md) as NAME=VALUE. A minute is complete when an order has
come that was placed `DELAY` after its end. Orders of a complete minute are left out. SIGTERM or Ctrl-C end the program
after its micro-batch.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kinesis_efo import job, read_stream

# As text: as a decimal, from_json changes "1,50" to 150.00 without an error.
SCHEMA = "customer string, amount string, placed string"
TYPED = (
    "order.customer",
    "if(order.amount rlike '^-?[0-9]+[.]?[0-9]*$', try_to_number(order.amount, 'MI9999999990.99'), null) as amount",
    "try_to_timestamp(order.placed, \"yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX\") as placed",
)
DELAY = "10 minutes"
# While it catches up, no shard gets further ahead: its orders would make those of the others late.
SKEW = "1m"

options: dict[str, Any] = dict(argument.split("=", 1) for argument in sys.argv[1:])
output, checkpoint = options.pop("output"), options.pop("checkpoint")

spark = SparkSession.builder.appName("windowed sums").getOrCreate()
with job(spark):
    records = read_stream(spark, **{"maxShardSkew": SKEW, **options})
    orders = records.select(F.from_json(F.col("data").cast("string"), SCHEMA).alias("order")).selectExpr(*TYPED)
    sums = (
        orders.where("amount is not null")
        .withWatermark("placed", DELAY)
        .groupBy(F.window("placed", "1 minute").alias("minute"), "customer")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("amount"))
        .select("minute.start", "customer", "orders", "amount")
    )
    files = sums.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    files.outputMode("append").start().awaitTermination()
