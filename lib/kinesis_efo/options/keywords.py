"""The options of `read_stream` and `read` as keywords, for editors and type checkers. Made from the table of options."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

Value: TypeAlias = str | int | float | bool
"""The type of an option's value. Text is allowed for every option, too; see `docs/options.md`."""


class SourceKeywords(TypedDict, total=False):
    """The options of the source."""

    streamArn: Value
    consumerArn: Value
    leaseTable: Value
    readMode: Value
    transport: Value
    pollingInterval: Value
    startingPosition: Value
    newStreamPosition: Value
    removedStreams: Value
    endingPosition: Value
    maxShardRate: Value
    shardsPerTask: Value
    maxBytesPerTrigger: Value
    maxRecordsPerTrigger: Value
    minBytesPerTrigger: Value
    maxTriggerDelay: Value
    maxShardSkew: Value
    bufferBytes: Value
    slowQueries: Value
    failOnDataLoss: Value
    acceptDataLoss: Value
    deaggregate: Value
    fetchers: Value
    fetcherHost: Value
    fetcherBindHost: Value
    fetcherPort: Value
    fetcherTls: Value
    catchUp: Value
    leaseTimeout: Value
    checkpointWritesPerSecond: Value
    pollTimeout: Value
    idleCheckpointInterval: Value
    region: Value
    endpointUrl: Value
    roleArn: Value
    externalId: Value
    roleSessionName: Value
    retryTimeout: Value
    metricsExport: Value
    metricsEmfTo: Value
    metricsEmfInterval: Value
    metricsShards: Value
