"""`kinesis_efo.read_stream`: opens the source and sets the options that only the session knows."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from kinesis_efo.spark.source import NAME, KinesisEfoSource


def read_stream(
    spark: SparkSession, *, manifest: str | None = None, streams: str | Sequence[str] | None = None, **options: object
) -> DataFrame:
    """Read the streams of an application as a streaming DataFrame.

    Does the same as `spark.readStream.format("kinesis-efo")`, but also works where Spark's discovery of data sources is off,
    and makes the fetcher bind to the driver's address where Spark runs on a cluster.

    Args:
        spark: The session.
        manifest: A path, `ssm:///name` or `s3://bucket/key`.
        streams: Logical names of the streams to read, as a sequence or separated by commas; None reads all of the manifest.
        options: Any other options of the source, `_` in place of `.`: `subscribe_maxRetries` for `subscribe.maxRetries`.

    Raises:
        AnalysisException: Options or manifest are wrong; it holds this library's message.

    ```python
    df = kinesis_efo.read_stream(spark, manifest="ssm:///kinesis-efo/dev/lake", streams=["orders"], bufferBytes="512m")
    ```
    """
    register(spark)
    reader = spark.readStream.format(NAME)
    if manifest is not None:
        reader = reader.option("manifest", manifest)
    if streams is not None:
        reader = reader.option("streams", streams if isinstance(streams, str) else ",".join(streams))
    if (host := _driver_host(spark)) is not None and "fetcherHost" not in options:
        reader = reader.option("fetcherHost", host)
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


def _driver_host(spark: SparkSession) -> str | None:
    """The driver's address; None in local mode, where loopback will do."""
    if spark.conf.get("spark.master", "").startswith("local"):  # type: ignore[union-attr]
        return None
    return spark.conf.get("spark.driver.host", None)
