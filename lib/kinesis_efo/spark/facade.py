"""`kinesis_efo.read_stream`: opens the source, and tells it what only the session knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo.options.source import DRIVER_HOST, FETCHERS_JOB, SUPERVISOR
from kinesis_efo.spark.finished_listener import listen
from kinesis_efo.spark.source import NAME, KinesisEfoSource

_supervisors: Final[list[object]] = []


def read_stream(
    spark: SparkSession, *, manifest: str | None = None, streams: str | Sequence[str] | None = None, **options: object
) -> DataFrame:
    """Read the streams of an application as a streaming DataFrame.

    Does the same as `spark.readStream.format("kinesis-efo")`, but also works where Spark's discovery of data sources is off, tells
    the fetcher where the session's driver is reached, and listens in a classic session for finished micro-batches, so that a query
    that stops leaves the lease table where its last one ended.

    Args:
        spark: The session.
        manifest: A path, `ssm:///name` or `s3://bucket/key`.
        streams: Logical names of the streams to read, as a sequence or separated by commas; None reads all of the manifest.
        options: Any other options of the source, `_` in place of `.`: `subscribe_maxRetries` for `subscribe.maxRetries`. With
            `fetchers=8`, eight Spark tasks fetch while the query runs.

    Raises:
        ConfigurationError: So many fetchers would leave no core for micro-batches.
        AnalysisException: Options or manifest are wrong; it holds this library's message.

    ```python
    df = kinesis_efo.read_stream(spark, manifest="ssm:///kinesis-efo/dev/lake", streams=["orders"], bufferBytes="512m")
    ```
    """
    register(spark)
    listen(spark)
    reader = spark.readStream.format(NAME)
    if manifest is not None:
        reader = reader.option("manifest", manifest)
    if streams is not None:
        reader = reader.option("streams", streams if isinstance(streams, str) else ",".join(streams))
    if host := _driver_host(spark):
        reader = reader.option(DRIVER_HOST, host)
    if (fetchers := _number_of_fetchers(options)) is not None:
        reader = reader.option(*_fetchers_job(spark, fetchers))
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        reader = reader.option(name.replace("_", "."), text)
    return reader.load()


def register(spark: SparkSession) -> None:
    """Register the source with a session; does no harm where Spark has discovered it already."""
    try:
        spark.dataSource.register(KinesisEfoSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to register a name that its discovery has found, 4.3 replaces it.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _number_of_fetchers(options: Mapping[str, object]) -> int | None:
    """The number of fetchers on executors that the options ask for; what is wrong with it, the source says."""
    for name, value in options.items():
        if name.lower() == "fetchers" and str(value).strip().isdecimal():
            return int(str(value))
    return None


def _fetchers_job(spark: SparkSession, fetchers: int) -> tuple[str, str]:
    """See that fetchers are started when a query is: the option that tells its planner how."""
    if not isinstance(spark, SparkSession):
        from kinesis_efo.spark.connect import fetchers_job

        return FETCHERS_JOB, fetchers_job(spark, fetchers)
    from kinesis_efo.spark.supervisor import Supervisor

    supervisor = Supervisor(spark, fetchers)
    # For as long as the program runs: a DataFrame may be started at any time.
    _supervisors.append(supervisor)
    return SUPERVISOR, supervisor.path


def _driver_host(spark: SparkSession) -> str | None:
    """Where executors reach the driver."""
    master = spark.conf.get("spark.master", None) or ""
    # The executors of `local-cluster` are processes of their own.
    if master.startswith("local") and not master.startswith("local-cluster"):
        return "localhost"
    return spark.conf.get("spark.driver.host", None)
