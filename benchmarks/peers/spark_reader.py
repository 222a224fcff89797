"""`python -m benchmarks.peers.spark_reader FORMAT PLACE TASKS TRIGGER OPTIONS [JAR]`: a query that says what it has, as `Seen.java` does.

FORMAT is that of the source, PLACE a directory for the checkpoint, TASKS how many run at once, TRIGGER the time between two
micro-batches, OPTIONS the source's as JSON, JAR a source that Spark has not.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame

import kinesis_efo
from benchmarks.machine import spark_session
from benchmarks.peers.load import HEAD


def _take(batch: DataFrame, _: int) -> None:
    head = f"decode(substring(data, 1, {HEAD}), 'US-ASCII') as head"
    rows = batch.where("substring(data, 1, 1) <> X'2D'").selectExpr(head).collect()
    now = time.time_ns() // 1000
    sys.stdout.write("".join(f"{row.head} {now}\n" for row in rows))
    sys.stdout.flush()


def main(source: str, place: str, tasks: str, trigger: str, options: str, jar: str | None = None) -> None:
    """Read until the process is killed."""
    settings = {} if jar is None else {"spark.jars": jar}
    with spark_session(int(tasks), "1g", settings) as spark:
        checkpoint = str(Path(place, "checkpoint"))
        kinesis_efo.low_latency(spark, checkpoint=checkpoint)
        given = msgspec.json.decode(options)
        if source == "kinesis-efo":
            frame = kinesis_efo.read_stream(spark, **given)
        else:
            frame = spark.readStream.format(source).options(**given).load()
        writer = frame.writeStream.foreachBatch(_take).option("checkpointLocation", checkpoint)
        writer.trigger(processingTime=trigger).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
