"""An archive of Spark's classes, with which a JVM starts three times as fast (class data sharing).

`python -m tests.support.class_archive` runs a small query, and writes the classes that it loads beside the Python that runs it. If
the archive does not fit because Java or Spark has changed, a JVM starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVMs of tests run too briefly for the optimizing compiler to pay off: without it, a test takes half the CPU time."""


def path(environment: Path | None = None) -> Path:
    """The path of the archive of an environment, by default of this one; it may not exist."""
    return (environment or Path(sys.prefix)) / "spark-classes.jsa"


def jvm_options(environment: Path | None = None) -> str:
    """Options for every JVM of the tests.

    Args:
        environment: The environment of its Spark; None for this one.
    """
    archive = path(environment)
    # No logs: a JVM would warn about an archive that does not fit.
    return f"{QUICK_JVM} -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else QUICK_JVM


def write() -> None:
    """Run a query like the tests' queries, in a JVM that archives its classes when it ends."""
    path().unlink(missing_ok=True)
    os.environ["JAVA_TOOL_OPTIONS"] = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={path()} -Xlog:disable"
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")

    from pyspark.sql import DataFrame, SparkSession

    from kinesis_efo.local import LocalAws, Settings
    from kinesis_efo.spark.listener import LagListener
    from tests.support.world import make_world, wait_until

    with tempfile.TemporaryDirectory() as name, LocalAws(settings=Settings(consumer_creating_seconds=0.0)) as aws:
        directory = Path(name)
        world = make_world(aws, directory, {"orders": 2})
        world.put((f"k{n}", b"%08d" % n) for n in range(100))
        builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
        spark = builder.config("spark.ui.port", "0").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        spark.streams.addListener(LagListener())
        df = spark.readStream.format("kinesis-efo").options(**world.options, startingPosition="TRIM_HORIZON").load()

        def batch(rows: DataFrame, number: int) -> None:
            rows.write.mode("overwrite").parquet(f"{directory}/batches/{number}")
            rows.groupBy("partitionKey").count().collect()
            rows.mapInArrow(lambda batches: batches, rows.schema).count()

        for number, writer in enumerate((df.writeStream.foreachBatch(batch), df.writeStream.format("parquet"))):
            checkpoint = f"{directory}/checkpoint{number}"
            query = writer.option("checkpointLocation", checkpoint).option("path", f"{directory}/lake").start()
            wait_until(
                lambda query=query: query.exception() or sum(p["numInputRows"] for p in query.recentProgress) >= 100,
                300,
            )
            query.stop()
            if error := query.exception():
                raise error
        spark.stop()


if __name__ == "__main__":
    write()
