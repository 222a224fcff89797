"""Copy streams into another one, with data and partition keys as they are.

    spark-submit examples/copy_stream.py checkpoint=s3://lake/checkpoints/copy \
        manifest=ssm:///kinesis-efo/dev/lake streams=orders to.stream=arn:aws:kinesis:us-east-1:123456789012:stream/copy

Arguments are options of the source (docs/options.md) as NAME=VALUE, and options of the sink with `to.` before them.
Delivery is at least once: after a failure some records are written again, and docs/writing.md says how readers of the
copy tell. SIGTERM or Ctrl-C end the program after its micro-batch.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession

from kinesis_efo import job, read_stream

options: dict[str, Any] = dict(argument.split("=", 1) for argument in sys.argv[1:])
checkpoint = options.pop("checkpoint")
target = {name.removeprefix("to."): value for name, value in options.items() if name.startswith("to.")}
source = {name: value for name, value in options.items() if not name.startswith("to.")}

spark = SparkSession.builder.appName("copy stream").getOrCreate()
with job(spark):
    records = read_stream(spark, **source).select("data", "partitionKey")
    copy = records.writeStream.format("kinesis-efo").option("ordered", True).options(**target)
    copy.option("checkpointLocation", checkpoint).start().awaitTermination()
