"""The data source `kinesis-efo` as Spark meets it.

Options and manifest are checked in `schema()`: that runs at `load()`, where an error reaches the user as it is. Spark imports this
module in four processes before a query reads its first record; so each part is imported where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kinesis_efo.errors import ConfigurationError
from kinesis_efo.manifest import Manifest, resolve_manifest
from kinesis_efo.options import AwsSettings, SourceOptions

if TYPE_CHECKING:
    from kinesis_efo.spark.stream_reader import KinesisStreamReader

NAME = "kinesis-efo"
"""What goes into `spark.readStream.format(...)`."""

SCHEMA = StructType(
    [
        StructField("data", BinaryType()),
        StructField("partitionKey", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("subSequenceNumber", LongType()),
        StructField("approximateArrivalTimestamp", TimestampType()),
        StructField("stream", StringType()),
        StructField("shardId", StringType()),
    ]
)
"""The columns of every stream. `partitionKey` may be null."""


class KinesisEfoSource(DataSource):
    """Kinesis streams through their declared consumers.

    ```python
    df = spark.readStream.format("kinesis-efo").option("manifest", "ssm:///kinesis-efo/dev/lake").load()
    ```
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """The columns; the options are checked on the way.

        Raises:
            OptionsError: Options are wrong; all of them are named.
            ManifestError: The manifest cannot be loaded or contradicts the options.
        """
        self._resolve()
        return SCHEMA

    def streamReader(self, schema: StructType) -> KinesisStreamReader:
        """A reader for one query.

        Raises:
            ConfigurationError: The user gave a schema of their own that is not this source's.
        """
        # Spark takes a schema given by the user in place of ours, and 4.0 then maps columns by position.
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in SCHEMA]:
            raise ConfigurationError(
                f"kinesis-efo has the columns {SCHEMA.simpleString()}; got {schema.simpleString()}. "
                "Leave .schema(...) out and select or cast what you need after load()"
            )
        from kinesis_efo.spark.stream_reader import KinesisStreamReader

        options, manifest = self._resolve()
        return KinesisStreamReader(options, manifest)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer for one streaming query; see `kinesis_efo.spark.sink`.

        Raises:
            ConfigurationError: Mode, columns, options or manifest are wrong.
        """
        from kinesis_efo.spark.sink import KinesisStreamWriter

        return KinesisStreamWriter.of(self.options, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer for one batch; see `kinesis_efo.spark.sink`.

        Raises:
            ConfigurationError: Mode, columns, options or manifest are wrong.
        """
        from kinesis_efo.spark.sink import KinesisBatchWriter

        return KinesisBatchWriter.of(self.options, schema, overwrite)

    def _resolve(self) -> tuple[SourceOptions, Manifest]:
        options = SourceOptions.parse(self.options)
        return options, resolve_manifest(options, _Session(options.aws))


class _Session:
    """AWS for a manifest that lies there; the SDK is imported only then."""

    def __init__(self, settings: AwsSettings) -> None:
        self._settings = settings

    def client(self, service_name: str, /) -> Any:
        from kinesis_efo.aws import SyncClients

        return SyncClients(self._settings).client(service_name)
