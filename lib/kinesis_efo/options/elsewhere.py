"""Options of other sources and sinks of Spark, and what takes their place here: for messages, and for docs/coming-from.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One row of the options of another system.

    Attributes:
        name: The option's name there, in any case; one that ends in `*` stands for all that begin so.
        ours: The option that takes its place; empty if none does.
        remark: What differs; where there is no option, why none is needed.
    """

    name: str
    ours: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """A system whose options users know.

    Attributes:
        whose: Its name in "this option is ...".
        source: Options for reading.
        sink: Options for writing.
    """

    whose: str
    source: Sequence[Counterpart]
    sink: Sequence[Counterpart] = ()


_CREDENTIALS: Final = "credentials come from the environment; `roleArn` assumes a role"
_CONSUMER: Final = "consumers are declared, and the manifest has their ARNs"
_NOT_REGISTERED: Final = "consumers are declared, neither registered nor deregistered"
_POSITION: Final = (
    "`earliest` is `TRIM_HORIZON`, a time `AT_TIMESTAMP:<ISO 8601>`; JSON gives each stream and shard its own"
)
_STREAMS: Final = "logical names of the manifest; without one, `streamArn`"
_STS: Final = "set `AWS_ENDPOINT_URL_STS` in the environment"
_OWN_STORE: Final = "positions are in Spark's checkpoint alone"
_PARTITIONS: Final = "tasks get even shares of a micro-batch's bytes"
_SHARDS: Final = "shards name their children when they end"
_READ_MODE: Final = "enhanced fan-out is the default here, and `polling` is GetRecords"

KAFKA: Final = System(
    "Kafka's",
    source=(
        Counterpart("kafka.bootstrap.servers", "manifest", "it names streams, consumers and lease table by their ARNs"),
        Counterpart("subscribe", "streams", _STREAMS),
        Counterpart("subscribePattern", "streams", "names separated by commas, no pattern; without it, all of the manifest"),
        Counterpart("assign", "streams", "all shards of a stream are read"),
        Counterpart("startingOffsets", "startingPosition", _POSITION),
        Counterpart("startingTimestamp", "startingPosition", "`AT_TIMESTAMP:<ISO 8601 or epoch ms>`"),
        Counterpart("startingOffsetsByTimestamp", "startingPosition", "JSON with `AT_TIMESTAMP:<epoch ms>` for each stream or shard"),
        Counterpart("endingOffsets", "endingPosition", "`LATEST`, or JSON with a position for each stream and shard"),
        Counterpart("endingTimestamp", "endingPosition", "`AT_TIMESTAMP:<ISO 8601 or epoch ms>`"),
        Counterpart("endingOffsetsByTimestamp", "endingPosition", "JSON with `AT_TIMESTAMP:<epoch ms>` for each stream or shard"),
        Counterpart("failOnDataLoss", "failOnDataLoss"),
        Counterpart("maxOffsetsPerTrigger", "maxRecordsPerTrigger"),
        Counterpart("minOffsetsPerTrigger", "", "a longer trigger, `.trigger(processingTime=...)`, makes larger micro-batches"),
        Counterpart("maxTriggerDelay", "", "a longer trigger, `.trigger(processingTime=...)`, makes larger micro-batches"),
        Counterpart("minPartitions", "", _PARTITIONS),
        Counterpart("maxRecordsPerPartition", "", _PARTITIONS),
        Counterpart("includeHeaders", "", "records of Kinesis have no headers"),
        Counterpart("groupIdPrefix", "", "there are no consumer groups: " + _CONSUMER),
        Counterpart("kafkaConsumer.pollTimeoutMs", "", "tasks read what the fetcher has already"),
        Counterpart("fetchOffset.numRetries", "subscribe.maxRetries"),
        Counterpart("fetchOffset.retryIntervalMs", "subscribe.backoff.baseMs"),
        Counterpart("kafka.group.id", "consumerArn", _CONSUMER),
        Counterpart("kafka.*", "", "it goes to Kafka's client, which is not here"),
    ),
    sink=(
        Counterpart("kafka.bootstrap.servers", "manifest", "or `stream` alone, with the name or ARN of a stream"),
        Counterpart("topic", "stream"),
        Counterpart("includeHeaders", "", "records of Kinesis have no headers"),
        Counterpart("kafka.linger.ms", "linger", "a duration such as `100ms`"),
        Counterpart("kafka.*", "", "it goes to Kafka's client, which is not here"),
    ),
)  # fmt: skip

DATABRICKS: Final = System(
    "Databricks'",
    source=(
        Counterpart("streamName", "streams", _STREAMS),
        Counterpart("streamARN", "streamArn", "one ARN; for several streams, a manifest"),
        Counterpart("region", "region"),
        Counterpart("endpoint", "endpointUrl", "for every AWS service; the region alone is enough"),
        Counterpart("initialPosition", "startingPosition", _POSITION),
        Counterpart("consumerMode", "readMode", _READ_MODE),
        Counterpart("consumerName", "consumerArn", _CONSUMER),
        Counterpart("consumerNamePrefix", "", _NOT_REGISTERED),
        Counterpart("registeredConsumerId", "consumerArn", _CONSUMER),
        Counterpart("registeredConsumerIdType", "", "consumers are named by their ARNs"),
        Counterpart("consumerRefreshInterval", "", _NOT_REGISTERED),
        Counterpart("requireConsumerDeregistration", "", _NOT_REGISTERED),
        Counterpart("fetchBufferSize", "bufferBytes", "a bound that is kept; of each fetcher"),
        Counterpart("maxFetchDuration", "", "`bufferBytes` says how much is fetched before Spark asks for it"),
        Counterpart("maxFetchRate", "", "a consumer has 2 MB/s of each shard for itself; for batch reads, `batch.maxRate`"),
        Counterpart("minFetchPeriod", "polling.interval", "with `readMode=polling` only"),
        Counterpart("maxRecordsPerFetch", "", "`maxRecordsPerTrigger` limits what a micro-batch takes"),
        Counterpart("shardsPerTask", "", _PARTITIONS),
        Counterpart("maxPartitions", "", _PARTITIONS),
        Counterpart("shardFetchInterval", "", _SHARDS),
        Counterpart("maxShardsPerDescribe", "", _SHARDS),
        Counterpart("coalesceThresholdBlockSize", "", _PARTITIONS),
        Counterpart("coalesceBinSize", "", _PARTITIONS),
        Counterpart("serviceCredential", "roleArn", "credentials come from the environment, as every AWS SDK finds them"),
        Counterpart("awsAccessKey", "", _CREDENTIALS),
        Counterpart("awsSecretKey", "", _CREDENTIALS),
        Counterpart("roleArn", "roleArn"),
        Counterpart("roleExternalId", "externalId"),
        Counterpart("roleSessionName", "roleSessionName"),
        Counterpart("stsEndpoint", "", _STS),
    ),
)  # fmt: skip

_CONNECTOR_AWS: Final = (
    Counterpart("kinesis.region", "region"),
    Counterpart("kinesis.endpointUrl", "endpointUrl", "for every AWS service; not needed, the region alone is enough"),
    Counterpart("kinesis.stsRoleArn", "roleArn"),
    Counterpart("kinesis.stsSessionName", "roleSessionName"),
    Counterpart("kinesis.stsEndpointUrl", "", _STS),
    Counterpart("kinesis.awsAccessKeyId", "", _CREDENTIALS),
    Counterpart("kinesis.awsSecretKey", "", _CREDENTIALS),
    Counterpart("kinesis.sessionToken", "", _CREDENTIALS),
    Counterpart("kinesis.credentialProviderClass", "", _CREDENTIALS),
    Counterpart("kinesis.credentialProviderParam", "", _CREDENTIALS),
)  # fmt: skip

CONNECTOR: Final = System(
    "spark-sql-kinesis-connector's",
    source=(
        Counterpart("kinesis.streamName", "streams", _STREAMS),
        Counterpart("kinesis.consumerType", "readMode", "`efo` is SubscribeToShard, and the default; `polling` is GetRecords"),
        Counterpart("kinesis.consumerName", "consumerArn", _CONSUMER),
        Counterpart("kinesis.startingPosition", "startingPosition", _POSITION),
        Counterpart("kinesis.failOnDataLoss", "failOnDataLoss", "`true` is the default here"),
        Counterpart("kinesis.maxFetchRecordsPerShard", "maxRecordsPerTrigger", "of all shards together"),
        Counterpart("kinesis.maxFetchTimePerShardSec", "", "a micro-batch takes what has arrived, and waits for no more"),
        *_CONNECTOR_AWS,
        Counterpart("kinesis.kinesisRegion", "region"),
        Counterpart("kinesis.describeShardInterval", "", _SHARDS),
        Counterpart("kinesis.minBatchesToRetain", "", _OWN_STORE),
        Counterpart("kinesis.checkNewRecordThreads", "", "the fetcher knows what has arrived"),
        Counterpart("kinesis.metadata*", "", _OWN_STORE),
        Counterpart("kinesis.dynamodb.tableName", "", _OWN_STORE + "; `leaseTable` is for leases"),
        Counterpart("kinesis.clientNumRetries", "subscribe.maxRetries"),
        Counterpart("kinesis.clientRetryIntervalsMs", "subscribe.backoff.baseMs"),
        Counterpart("kinesis.clientMaxRetryIntervalMs", "subscribe.backoff.maxMs"),
        Counterpart("kinesis.subscribeToShard.maxRetries", "subscribe.maxRetries"),
        Counterpart("kinesis.subscribeToShard.timeoutSec", "", "a subscription that is silent is opened again by itself"),
        Counterpart("kinesis.getRecords.fetchIntervalMs", "polling.interval", "a duration such as `1s`"),
        Counterpart("kinesis.getRecords.numberOfRecordsPerFetch", "", "`maxRecordsPerTrigger` limits what a micro-batch takes"),
        Counterpart("kinesis.*", "", "nothing takes its place"),
    ),
    sink=(
        Counterpart("kinesis.streamName", "stream", "a logical name of the manifest; without one, a stream's name or ARN"),
        *_CONNECTOR_AWS,
        Counterpart("kinesis.sink.recordMaxBufferedTimeMs", "linger", "a duration such as `100ms`"),
        Counterpart("kinesis.sink.flushWaitTimeMs", "", "a task ends when everything is acknowledged"),
        Counterpart("kinesis.sink.recordTtl", "retryTimeout", "no record is dropped for its age; the task fails instead"),
        Counterpart("kinesis.sink.maxConnections", "maxInFlight", "requests of a task that may be in flight"),
        Counterpart("kinesis.sink.rateLimit", "", "a task writes as fast as the shards take it"),
        Counterpart("kinesis.sink.aggregationEnabled", "aggregate", "`false` is the default here"),
        Counterpart("kinesis.*", "", "nothing takes its place"),
    ),
)  # fmt: skip

SPARK: Final = System(
    "Spark's",
    source=(
        Counterpart("path", "manifest", "`load()` takes no path; a manifest is a path, ssm:///name or s3://bucket/key"),
        Counterpart(
            "provider",
            "",
            "CREATE TABLE ... USING keeps no options for a source like this one; CREATE TEMPORARY VIEW ... USING "
            "\"kinesis-efo\" OPTIONS (manifest '...') reads a stretch",
        ),
    ),
)

SYSTEMS: Final = (KAFKA, DATABRICKS, CONNECTOR, SPARK)


def explain(name: str, systems: Sequence[tuple[str, Sequence[Counterpart]]]) -> str | None:
    """What to do about an option that others know; None where none does. Names are matched in any case.

    Args:
        name: The option.
        systems: Whose options they are, and the options.

    >>> explain("MAXOFFSETSPERTRIGGER", [(KAFKA.whose, KAFKA.source)])
    "'maxOffsetsPerTrigger' is Kafka's; here it is 'maxRecordsPerTrigger'"
    """
    for whose, counterparts in systems:
        for known in counterparts:
            lower = known.name.lower()
            if lower != name.lower() and not (lower.endswith("*") and name.lower().startswith(lower[:-1])):
                continue
            shown = name if lower.endswith("*") else known.name
            advice = f"here it is '{known.ours}'" if known.ours else "leave it out"
            remark = f": {known.remark}" if known.remark else ""
            return f"'{shown}' is {whose}; {advice}{remark}".replace("`", "'")
    return None
