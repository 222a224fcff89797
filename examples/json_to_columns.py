"""Turn JSON records into the columns of Parquet files, each record exactly once.

    spark-submit examples/json_to_columns.py output=s3://lake/orders checkpoint=s3://lake/checkpoints/orders \
        manifest=ssm:///kinesis-efo/dev/lake streams=orders

All other arguments are options of the source (docs/options.md) as NAME=VALUE. A record that is no JSON in UTF-8, or does
not fit the schema, is kept as it is in the column `malformed`. SIGTERM or Ctrl-C end the program after its micro-batch.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from kinesis_efo import job, read_stream

# As text: as a decimal, from_json changes "1,50" to 150.00 without an error.
SCHEMA = "id string, customer string, amount string, placed string, unread string"
TYPED = (
    "order.id",
    "order.customer",
    "if(order.amount rlike '^-?[0-9]+[.]?[0-9]*$', try_to_number(order.amount, 'MI9999999990.99'), null) as amount",
    "try_to_timestamp(order.placed, \"yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]XXX\") as placed",
)
# A blank record gives no order, and Spark replaces bytes that are not UTF-8.
GOOD = """order is not null and order.unread is null and is_valid_utf8(string(data))
and (order.amount is null or amount is not null) and (order.placed is null or placed is not null)"""

options = dict(argument.split("=", 1) for argument in sys.argv[1:])
output, checkpoint = options.pop("output"), options.pop("checkpoint")
interval = options.pop("interval", "1 minute")  # longer means larger files

spark = SparkSession.builder.appName("json to columns").getOrCreate()
with job(spark):
    records = read_stream(spark, **options)
    order = F.from_json(F.col("data").cast("string"), SCHEMA, {"columnNameOfCorruptRecord": "unread"})
    rows = records.select(order.alias("order"), "data", "approximateArrivalTimestamp").selectExpr("*", *TYPED)
    orders = rows.withColumn("malformed", F.when(~F.expr(GOOD), F.col("data"))).drop("order", "data")
    files = orders.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    files.trigger(processingTime=interval).start().awaitTermination()
