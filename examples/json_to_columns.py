"""Turn JSON records into the columns of Parquet files, each record exactly once.

    spark-submit examples/json_to_columns.py output=s3://lake/orders checkpoint=s3://lake/checkpoints/orders \
        manifest=ssm:///kinesis-efo/dev/lake streams=orders

All other arguments are options of the source (docs/options.md) as NAME=VALUE. A record that is no JSON in UTF-8, or does
not fit the schema, is kept as it is in the column `malformed`. SIGTERM or Ctrl-C end the program after its micro-batch.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession

from kinesis_efo import from_json, job, read_stream

SCHEMA = "id string, customer string, amount decimal(12, 2), placed timestamp"
options: dict[str, Any] = dict(argument.split("=", 1) for argument in sys.argv[1:])
output, checkpoint = options.pop("output"), options.pop("checkpoint")
interval = options.pop("interval", "1 minute")  # longer means larger files

spark = SparkSession.builder.appName("json to columns").getOrCreate()
with job(spark):
    records = read_stream(spark, **options)
    orders = from_json(records.select("data", "approximateArrivalTimestamp"), SCHEMA)
    files = orders.writeStream.format("parquet").option("path", output).option("checkpointLocation", checkpoint)
    files.trigger(processingTime=interval).start().awaitTermination()
