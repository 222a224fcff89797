"""The options as keyword arguments, for type checkers and editors. Generated from the tables of options."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypedDict


class _Reading(TypedDict, total=False):
    """The options of `read_stream` and `read`."""

    streamArn: str
    startingPosition: datetime | int | str
    startingTimestamp: datetime | int | str
    endingPosition: datetime | int | str
    endingTimestamp: datetime | int | str
    maxShardRate: int | str
    failOnDataLoss: bool | Literal["true", "false"]
    deaggregate: bool | Literal["true", "false", "strict"]
    region: str
    endpointUrl: str
    roleArn: str
    externalId: str
    roleExternalId: str
    roleSessionName: str
    retryTimeout: str | timedelta
    metricsExport: Literal["otel", "emf", "none"]
    metricsEmfTo: str
    metricsEmfInterval: str | timedelta
    metricsShards: int


class StreamKeywords(_Reading, total=False):
    """The type of a dict of options for `read_stream`."""

    consumerArn: str
    leaseTable: str
    readMode: Literal["efo", "polling"]
    transport: Literal["auto", "http2", "http1"]
    pollingInterval: str | timedelta
    newStreamPosition: datetime | int | str
    removedStreams: Literal["fail", "drop"]
    maxBytesPerTrigger: int | str
    maxRecordsPerTrigger: int
    minBytesPerTrigger: int | str
    maxTriggerDelay: str | timedelta
    maxShardSkew: str | timedelta
    bufferBytes: int | str
    slowQueries: Literal["apart", "hold"]
    acceptDataLoss: str
    fetchers: int | Literal["driver"]
    fetcherHost: str
    fetcherBindHost: str
    fetcherPort: int | str
    fetcherTls: bool | Literal["true", "false"]
    catchUp: bool | Literal["true", "false"]
    leaseTimeout: str | timedelta
    checkpointWritesPerSecond: float
    pollTimeout: str | timedelta
    idleCheckpointInterval: str | timedelta


class BatchKeywords(_Reading, total=False):
    """The type of a dict of options for `read`."""

    shardsPerTask: int | Literal["auto"]


class SinkKeywords(TypedDict, total=False):
    """The type of a dict of options for the sink, for `writeStream.format("kinesis-efo").options(**options)`."""

    manifest: str
    stream: str
    maxOutstandingRecords: int
    maxOutstandingBytes: int | str
    linger: str
    maxInFlight: int
    ordered: bool | Literal["true", "false"]
    aggregate: bool | Literal["true", "false"]
    aggregateBytes: int | str
    failOnError: bool | Literal["true", "false"]
    retryTimeout: str
    stallWarning: str
    backoffBase: str
    backoffMax: str
    region: str
    endpointUrl: str
    roleArn: str
    externalId: str
    roleExternalId: str
    roleSessionName: str
    metricsExport: Literal["otel", "emf", "none"]
    metricsEmfTo: str
    metricsEmfInterval: str
