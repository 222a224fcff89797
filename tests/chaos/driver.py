"""A driver program to be killed: reads the streams of a manifest and writes Parquet, one directory per micro-batch.

Takes one argument, JSON. Says READY once Spark is up, and starts the query when a line comes on stdin: the next driver warms
up while this one runs. Writing a directory anew is idempotent by batch id, as every exactly-once sink has to be.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import kinesis_efo


def kill_everything() -> None:
    """The driver, its JVM and all they started and kept in their process group, this process last."""
    os.killpg(int(os.environ["DRIVER_GROUP"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def once(flag: str) -> bool:
    """Whether this is the first call in all runs."""
    try:
        Path(flag).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def main(config: dict[str, Any]) -> None:
    os.environ["DRIVER_GROUP"] = str(os.getpgid(0))
    builder = SparkSession.builder.master("local[2]").appName("chaos")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print("READY", flush=True)  # noqa: T201
    sys.stdin.readline()

    output, flags = config["output"], config["flags"]
    in_task, after_sink = (config.get(name) for name in ("killInTask", "killAfterSink"))

    def meddle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if in_task and seen >= in_task and once(f"{flags}/in-task"):
                kill_everything()

    def write(df: DataFrame, batch: int) -> None:
        df.write.mode("overwrite").parquet(f"{output}/batch={batch}")
        if after_sink and batch >= after_sink and once(f"{flags}/after-sink"):
            kill_everything()

    options = config["options"]
    if "fetchers" in options:
        df = kinesis_efo.read_stream(spark, **options)
    else:
        df = spark.readStream.format("kinesis-efo").options(**options).load()
    if in_task:
        df = df.mapInArrow(meddle, df.schema)
    # One micro-batch right after the other would take the processor from the driver that starts meanwhile.
    writer = df.writeStream.foreachBatch(write).trigger(processingTime="500 milliseconds")
    writer = writer.option("checkpointLocation", config["checkpoint"])
    query = writer.start()
    print("STARTED", flush=True)  # noqa: T201
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
