"""An archive of Spark's classes, with which a JVM starts three times as fast (class data sharing).

`python -m tests.support.class_archive` runs a small query, and writes the classes that it loads beside the Python that runs it. If
the archive does not fit because Java or Spark has changed, a JVM starts without it.
"""

import os
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from kinesis_efo.driver.tuning import MANAGER, manager_class

QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVMs of tests run too briefly for the optimizing compiler to pay off: without it, a test takes half the CPU time."""

AS_BUILT: Final = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
"""An archive is mapped where it was written for: a JVM that puts it elsewhere corrects two million pointers first."""

INTERPRETED: Final = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
"""What runs a few times only is interpreted sooner than compiled, by Spark's own compiler as well."""


def path(environment: Path | None = None) -> Path:
    """The path of the archive of an environment, by default of this one; it may not exist."""
    return (environment or Path(sys.prefix)) / "spark-classes.jsa"


def jvm_options(environment: Path | None = None, *, as_shipped: bool = False) -> str:
    """Options for every JVM of the tests. What a program sets itself on its session counts.

    Args:
        environment: The environment of its Spark; None for this one.
        as_shipped: Whether its Spark has no settings but those that it is shipped with.
    """
    archive, options = path(environment), [QUICK_JVM]
    if not as_shipped:
        # Spark's default starts processes for each file of a checkpoint, and a micro-batch takes twice the CPU time.
        options += [INTERPRETED, f"-D{MANAGER}={manager_class(_spark_version(environment))}"]
    if archive.exists():
        # No logs: a JVM would warn about an archive that does not fit.
        options.append(f"-XX:SharedArchiveFile={archive} {AS_BUILT} -Xlog:disable")
    return " ".join(options)


def _spark_version(environment: Path | None) -> str:
    # A directory may be on the path twice, as it is in pytest-xdist's processes.
    places = sys.path if environment is None else [str(each) for each in environment.glob("lib/python3*/site-packages")]
    return next(iter(distributions(name="pyspark", path=places))).version


def write() -> None:
    """Run a query like the tests' queries, in a JVM that archives its classes when it ends."""
    path().unlink(missing_ok=True)
    os.environ["JAVA_TOOL_OPTIONS"] = f"{QUICK_JVM} -XX:ArchiveClassesAtExit={path()} -Xlog:disable"
    os.environ.update(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test")

    from pyspark.sql import DataFrame, SparkSession

    from kinesis_efo.driver.listener import LagListener
    from kinesis_efo_local import LocalAws, Settings
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
        # Python does not wait for its JVM, which writes the archive after everything else, for half a minute.
        gateway: Any = spark.sparkContext._gateway
        jvm = gateway.proc
        spark.stop()
        jvm.stdin.close()
        if status := jvm.wait(300):
            raise SystemExit(f"class_archive: the JVM ended with {status}")


if __name__ == "__main__":
    write()
