"""A driver program for a cluster: runs queries that write Parquet, one directory per micro-batch, and tells what becomes of them.

Takes one argument, JSON: `master`, and `conf` with Spark's configuration; or `remote`, the URL of a Spark Connect server. Says READY once Spark is up, and then obeys lines of JSON:

- `{"start": name, "options": ..., "checkpoint": path, "output": path}` starts a query. With `"plain": true` it is opened with
  `spark.readStream.format`, otherwise with `kinesis_efo.read_stream`. If it fails, the program says `FAILED name "message"`.
  With `"dies_after": number`, the program kills itself once it has written this micro-batch, before Spark's commit log.
  With `"flags": directory`, first attempts of tasks leave a file of their host's name there, and all wait for a file `go` beside it.
- `{"stop": name}` stops it, and says `STOPPED name `.

At the end of the lines it stops Spark and ends. Writing a directory anew is idempotent by batch id, as every exactly-once sink has to be.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

import kinesis_efo

CONF = {
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    # One executor on each of the two workers.
    "spark.cores.max": "4",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # What runs a few times only is interpreted sooner than compiled.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def with_host(flags: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Adds the host that a task runs on."""

    def added(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import socket
        import threading
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            if flags and context.attemptNumber() == 0:
                Path(flags, socket.gethostname()).touch()
            while flags and not Path(flags, "go").exists():
                threading.Event().wait(0.1)
            yield batch.append_column("host", pa.array([socket.gethostname()] * batch.num_rows))

    return added


def writing_to(output: str, dies_after: int | None) -> Callable[[DataFrame, int], None]:
    def write(df: DataFrame, batch: int) -> None:
        df.write.mode("overwrite").parquet(f"{output}/batch={batch}")
        if batch == dies_after:
            os.killpg(0, signal.SIGKILL)

    return write


def start(spark: SparkSession, command: dict[str, Any]) -> StreamingQuery:
    options = command["options"]
    if command.get("plain"):
        df = spark.readStream.format("kinesis-efo").options(**options).load()
    else:
        df = kinesis_efo.read_stream(spark, **options)
    adding = with_host(command.get("flags", ""))
    df = df.mapInArrow(adding, StructType([*df.schema, StructField("host", StringType())]))
    writer = df.writeStream.foreachBatch(writing_to(command["output"], command.get("dies_after")))
    writer = writer.trigger(processingTime="500 milliseconds")
    return writer.option("checkpointLocation", command["checkpoint"]).queryName(command["start"]).start()


def watch(name: str, query: StreamingQuery) -> None:
    try:
        query.awaitTermination()
    except PySparkException as error:
        say(f"FAILED {name} {json.dumps(str(error))}")


def main(config: dict[str, Any]) -> None:
    if "remote" in config:
        spark = SparkSession.builder.remote(config["remote"]).getOrCreate()
    else:
        builder = SparkSession.builder.master(config["master"]).appName("cluster")
        for key, value in {**CONF, **config["conf"]}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    spark.streams.addListener(kinesis_efo.LagListener())
    say("READY")
    queries: dict[str, StreamingQuery] = {}
    for line in sys.stdin:
        command = json.loads(line)
        if name := command.get("stop"):
            queries.pop(name).stop()
            say(f"STOPPED {name} ")
            continue
        name = command["start"]
        try:
            query = queries[name] = start(spark, command)
        except PySparkException as error:
            say(f"FAILED {name} {json.dumps(str(error))}")
            continue
        threading.Thread(target=watch, args=(name, query), daemon=True).start()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
