"""Archive Kinesis streams as Parquet, each record exactly once, partitioned by stream, arrival date and hour (UTC).

    spark-submit jobs/archive.py --manifest ssm:///kinesis-efo/dev/lake \
        --output s3://lake/raw --checkpoint s3://lake/checkpoints/raw

Exactly-once output depends on three things: the source's offsets are exact ranges, Spark's checkpoint stores them, and Spark's file sink
lists the files of each micro-batch in `<output>/_spark_metadata`. Readers that use this list, such as Spark, never read files of an
incomplete micro-batch.

Because of this list, a checkpoint must not be older than its output, such as after a restore from a backup: the sink silently skips
micro-batches whose numbers are already in the list. In this case, the job refuses to start.

SIGTERM and SIGINT end the job after its current micro-batch, and release its leases. Exit codes are those of
`kinesis_efo.job`: 0 if the job ended as requested, 3 if another run is reading (docs/how-to/orchestrators.md).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, date_format
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kinesis_efo import ConfigurationError, LagListener, job, read_stream

SPARK_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


class WrongArgument(ValueError):
    """A command-line argument is invalid."""


def archive(
    manifest: str,
    output: str,
    checkpoint: str,
    streams: str | None = None,
    starting_position: str | None = None,
    trigger: str = "1 minute",
    retention: str | None = None,
    available_now: bool = False,
    option: Sequence[str] = (),
) -> None:
    """Archive Kinesis streams as Parquet, each record exactly once. For the arguments, see `command_line`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # At INFO, py4j logs every message between Python and the JVM.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    named = {
        "manifest": manifest,
        "streams": streams,
        "startingPosition": starting_position,
        # Python sources support `Trigger.AvailableNow` only from Spark 4.2 on.
        "catchUp": "true" if available_now and SPARK_VERSION < (4, 2) else None,
    }
    given = [f"{name}={value}" for name, value in named.items() if value is not None]
    options = pairs([*given, *option])
    names = options.pop("streams", None)
    spark = SparkSession.builder.appName("kinesis-efo archive").getOrCreate()
    # Spark formats the dates and hours of partitions in the session's time zone.
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.streams.addListener(LagListener(logging.getLogger("archive").info))
    with job(spark):
        refuse_if_ahead(
            names_in(spark, f"{output}/_spark_metadata"), names_in(spark, f"{checkpoint}/offsets"), output, checkpoint
        )
        frame = read_stream(spark, streams=names and names.split(","), **options)
        writer = parquet(frame, output, checkpoint, retention)
        triggered = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)
        triggered.start().awaitTermination()


def parquet(frame: DataFrame, output: str, checkpoint: str, retention: str | None = None) -> DataStreamWriter:
    """Return a writer of Parquet, partitioned by stream, arrival date and hour. The sink removes files from its list after `retention`.

    The stream is always part of the path, so that adding a second stream later does not change the paths of the first one.
    """
    arrival = col("approximateArrivalTimestamp")
    writer = (
        frame.withColumn("date", date_format(arrival, "yyyy-MM-dd"))
        .withColumn("hour", date_format(arrival, "HH"))
        .writeStream.format("parquet")
        .queryName("archive")
        .partitionBy("stream", "date", "hour")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
    )
    return writer if retention is None else writer.option("retention", retention)


def refuse_if_ahead(written: Iterable[str], planned: Iterable[str], output: str, checkpoint: str) -> None:
    """Reject a checkpoint that is older than its output.

    Args:
        written: Names of the files in the sink's log. Each covers one micro-batch, or several, such as `9.compact`.
        planned: Names of the files in the checkpoint's offset log.
        output: Location of the output, for the error message.
        checkpoint: Location of the checkpoint, for the error message.

    Raises:
        ConfigurationError: The sink's log contains a micro-batch that is not in the checkpoint's offset log.
    """
    last, known = last_batch(written), last_batch(planned)
    if last > known:
        raise ConfigurationError(
            f"the output {output} has micro-batch {last} already, but the checkpoint {checkpoint} "
            f"{f'knows none after {known}' if known >= 0 else 'knows none'}: it is older than its output, as after a restore from a backup. "
            f"Spark's file sink would leave out what is read in micro-batches {known + 1} to {last}, without a word. Give --output a new "
            "directory: what came since is then read again, as far as the streams keep it, and what both directories hold is told by shardId "
            "and sequenceNumber"
        )


def last_batch(names: Iterable[str]) -> int:
    """Return the number of the newest micro-batch in a Spark log; -1 if there is none.

    >>> last_batch(["8", "9.compact", "10", ".10.crc", "11.tmp"])
    10
    """
    numbers = [name.removesuffix(".compact") for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def names_in(spark: SparkSession, location: str) -> list[str]:
    """Return the file names in a directory, in any file system that Spark supports; empty if there is no such directory."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []


def pairs(texts: list[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` texts into a dictionary.

    >>> pairs(["bufferBytes=64m", "manifest=ssm:///a=b"])
    {'bufferBytes': '64m', 'manifest': 'ssm:///a=b'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongArgument(f"--option must be NAME=VALUE, such as bufferBytes=64m; got {text!r}")
        # Names of options are case-insensitive.
        if before := next((known for known in found if known.lower() == name.lower()), None):
            raise WrongArgument(f"option {name} is given twice: {found[before]!r} and {value!r}; leave one out")
        found[name] = value
    return found


def command_line() -> argparse.ArgumentParser:
    """Return the argument parser. It uses the standard library only, so that jobs' archives need no additional packages."""
    parser = argparse.ArgumentParser(
        description="Archive Kinesis streams as Parquet, each record exactly once.", allow_abbrev=False
    )
    parser.add_argument(
        "--manifest", required=True, help="The application's manifest: a path, ssm:///name or s3://bucket/key."
    )
    parser.add_argument("--output", required=True, help="Directory for the Parquet files.")
    parser.add_argument("--checkpoint", required=True, help="Directory for the query's progress; one for each output.")
    parser.add_argument("--streams", help="Logical stream names, comma separated; * for all in the manifest.")
    parser.add_argument(
        "--starting-position",
        help="LATEST, TRIM_HORIZON, LEASES or AT_TIMESTAMP:<ISO 8601 or epoch ms>; new queries only.",
    )
    parser.add_argument(
        "--trigger",
        default="1 minute",
        help="Time between micro-batches, such as '1 minute' (the default). A longer one makes larger files.",
    )
    parser.add_argument(
        "--retention",
        help="Drop files from the sink's list after this time, such as 30d; Spark then reads them only by their own paths. Default: never.",
    )
    parser.add_argument("--available-now", action="store_true", help="Read what is in the streams now, then end.")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Any other option of the source; may be repeated.",
    )
    return parser


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments. Unknown ones are ignored in Glue, which adds its own."""
    found, others = parser.parse_known_args(words)
    if others and "--JOB_RUN_ID" not in others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    return found


def main() -> None:
    """Run the job with the arguments of the command line."""
    parser = command_line()
    try:
        archive(**vars(parsed(parser, sys.argv[1:])))
    except WrongArgument as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
