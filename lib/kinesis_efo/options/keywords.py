"""The options of `read_stream` and `read` as keywords, for editors and type checkers. Made from the table of options."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

Value: TypeAlias = str | int | float | bool
"""The type of an option's value. Text is allowed for every option, too; see `docs/options.md`."""


class SourceKeywords(TypedDict, total=False):
    """The options of the source, `_` in place of `.`."""

    streamArn: Value
    consumerArn: Value
    leaseTable: Value
    readMode: Value
    transport: Value
    polling_interval: Value
    startingPosition: Value
    newStreamPosition: Value
    removedStreams: Value
    endingPosition: Value
    batch_maxRate: Value
    batch_shardsPerTask: Value
    registration: Value
    maxBytesPerTrigger: Value
    maxRecordsPerTrigger: Value
    minBytesPerTrigger: Value
    maxTriggerDelay: Value
    maxShardSkew: Value
    bufferBytes: Value
    slowQueries: Value
    apartRate: Value
    failOnDataLoss: Value
    acceptDataLoss: Value
    deaggregate: Value
    fetchers: Value
    fetcherHost: Value
    fetcherBindHost: Value
    fetcherPort: Value
    fetcherTls: Value
    catchUp: Value
    latencyHooks: Value
    leaseTimeout: Value
    checkpointRate: Value
    pollTimeout: Value
    idleCheckpointInterval: Value
    region: Value
    endpointUrl: Value
    roleArn: Value
    externalId: Value
    roleSessionName: Value
    subscribe_retryTimeout: Value
    subscribe_maxRetries: Value
    subscribe_backoff_baseMs: Value
    subscribe_backoff_maxMs: Value
    subscribe_backoff_factor: Value
    metrics_export: Value
    metrics_emf_to: Value
    metrics_emf_interval: Value
    metrics_shards: Value
