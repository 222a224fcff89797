"""The options as keyword arguments, for type checkers and editors. Generated from the tables of options."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypedDict


class BatchKeywords(TypedDict, total=False):
    """The type of a dict of options for `read`."""

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
    awsProfile: str
    credentialProvider: str
    retryTimeout: str | timedelta
    metricsExport: str
    metricsShards: int


class StreamKeywords(BatchKeywords, total=False):
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
    fetcherPort: int | str
    catchUp: bool | Literal["true", "false"]
    leaseTimeout: str | timedelta
    checkpointWritesPerSecond: float
    pollTimeout: str | timedelta
    idleCheckpointInterval: str | timedelta


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
    region: str
    endpointUrl: str
    roleArn: str
    externalId: str
    roleExternalId: str
    awsProfile: str
    credentialProvider: str
    metricsExport: str
