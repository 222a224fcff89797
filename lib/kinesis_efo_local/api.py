"""The Kinesis operations on streams, shards, consumers and queues: one function per operation. Invalid requests raise `AwsError`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import AwsError, invalid, limit_exceeded, not_found
from .reading import get_records, get_shard_iterator
from .shards import MAX_HASH, Shard
from .state import HOUR, Kinesis
from .streams import KEYED, Stream
from .tokens import open_token, seal
from .traits import warm_throughput

Params = dict[str, Any]
ON_DEMAND_SHARDS = 4


def create_stream(kinesis: Kinesis, params: Params) -> Params:
    """Handle a CreateStream request. An on-demand stream starts with 4 shards."""
    mode = params.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED")
    count = params.get("ShardCount")
    if mode == "ON_DEMAND":
        if count is not None:
            raise invalid("ShardCount must not be given for a stream with StreamMode ON_DEMAND")
        count = ON_DEMAND_SHARDS
    elif count is None:
        raise invalid("ShardCount must be given for a stream with StreamMode PROVISIONED")
    distribution = params.get("RecordDistributionStrategy")
    if distribution is not None and mode != "ON_DEMAND":
        raise invalid("RecordDistributionStrategy is only supported for a stream with StreamMode ON_DEMAND")
    warm = warm_throughput(mode, params)
    stream = kinesis.create_stream(
        params["StreamName"], count, mode, params.get("MaxRecordSizeInKiB", 1024) * 1024, dict(params.get("Tags", {}))
    )
    stream.traits.distribution = distribution or KEYED
    stream.traits.warm_mib = stream.traits.warm_target_mib = warm
    return {}


def delete_stream(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DeleteStream request."""
    kinesis.delete_stream(kinesis.stream(params), with_consumers=params.get("EnforceConsumerDeletion", False))
    return {}


def list_streams(kinesis: Kinesis, params: Params) -> Params:
    """Handle a ListStreams request."""
    after = params.get("ExclusiveStartStreamName") or _token(params, "streams").get("after", "")
    limit = params.get("Limit", 100)
    left = [stream for name, stream in sorted(kinesis.streams.items()) if name > after]
    page = left[:limit]
    shown: Params = {
        "StreamNames": [stream.name for stream in page],
        "HasMoreStreams": len(left) > limit,
        "StreamSummaries": [
            {
                "StreamName": stream.name,
                "StreamARN": stream.arn,
                "StreamStatus": stream.status,
                "StreamModeDetails": {"StreamMode": stream.traits.mode},
                "StreamCreationTimestamp": stream.created_at,
            }
            for stream in page
        ],
    }
    if len(left) > limit:
        shown["NextToken"] = seal({"list": "streams", "after": page[-1].name, "issued": kinesis.now().wall})
    return shown


def describe_stream_summary(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DescribeStreamSummary request."""
    stream = kinesis.stream(params)
    return {
        "StreamDescriptionSummary": _describe(stream)
        | {
            "OpenShardCount": len(stream.open_shards),
            "ConsumerCount": len(stream.consumers),
            "QueueCount": len(stream.queues),
            "MaxRecordSizeInKiB": stream.traits.max_record_bytes // 1024,
        }
        # Only on-demand streams have a record distribution strategy.
        | ({"RecordDistributionStrategy": stream.traits.distribution} if stream.traits.mode == "ON_DEMAND" else {})
        | stream.traits.warm_throughput
    }


def describe_stream(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DescribeStream request."""
    stream = kinesis.stream(params)
    after, limit = params.get("ExclusiveStartShardId", ""), params.get("Limit", 100)
    left = [shard for shard in stream.shards.values() if shard.id > after]
    return {
        "StreamDescription": _describe(stream)
        | {"Shards": [shard.describe() for shard in left[:limit]], "HasMoreShards": len(left) > limit}
    }


def _describe(stream: Stream) -> Params:
    key = {} if stream.traits.key_id is None else {"KeyId": stream.traits.key_id}
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status,
        "StreamModeDetails": {"StreamMode": stream.traits.mode},
        "RetentionPeriodHours": _hours(stream.traits.retention_seconds),
        "StreamCreationTimestamp": stream.created_at,
        "EnhancedMonitoring": [{"ShardLevelMetrics": stream.traits.shard_metrics}],
        "EncryptionType": stream.traits.encryption,
        **key,
    }


def _hours(seconds: float) -> float:
    # Return an int, as the real service does, unless a test has set a retention period that is not a whole number of hours.
    hours = seconds / HOUR
    return int(hours) if hours.is_integer() else hours


def list_shards(kinesis: Kinesis, params: Params) -> Params:
    """Handle a ListShards request. Supports all shard filters and pagination."""
    if "NextToken" in params:
        clash = [
            name
            for name in ("StreamName", "StreamARN", "StreamCreationTimestamp", "ExclusiveStartShardId", "ShardFilter")
            if name in params
        ]
        if clash:
            raise invalid(f"NextToken and {' and '.join(clash)} cannot be provided together.")
        token = _token(params, "shards")
        issued = token["issued"]
        if kinesis.now().wall - issued > kinesis.settings.iterator_seconds:
            raise AwsError("ExpiredNextTokenException", f"NextToken has expired: it was issued at {issued:.3f}")
        params = {
            **token["query"],
            "MaxResults": params.get("MaxResults", 1000),
            "ExclusiveStartShardId": token["after"],
        }
    stream = kinesis.stream(params)
    created = params.get("StreamCreationTimestamp")
    if created is not None and abs(created - stream.created_at) >= 1:
        raise AwsError("ResourceNotFoundException", f"Stream {stream.name} was not created at {created}")
    stream.check_listable()
    if kinesis.wrong.hides_shards(stream.arn):
        return {"Shards": []}
    after, limit = params.get("ExclusiveStartShardId", ""), min(params.get("MaxResults", 1000), 1000)
    wanted = _shard_filter(stream, params.get("ShardFilter"), kinesis.now().wall)
    left = [shard for shard in stream.shards.values() if shard.id > after and wanted(shard)]
    shown: Params = {"Shards": [shard.describe() for shard in left[:limit]]}
    if len(left) > limit:
        query = {"StreamName": stream.name, "ShardFilter": params.get("ShardFilter")}
        shown["NextToken"] = seal(
            {"list": "shards", "query": query, "after": left[limit - 1].id, "issued": kinesis.now().wall}
        )
    return shown


def _shard_filter(stream: Stream, given: Params | None, now: float) -> Callable[[Shard], bool]:
    kind = given["Type"] if given else "FROM_TRIM_HORIZON"
    given = given or {}
    horizon = max(stream.horizon(now), stream.created_at)
    if kind == "AFTER_SHARD_ID":
        if "ShardId" not in given:
            raise invalid("ShardFilter of type AFTER_SHARD_ID needs a ShardId")
        after: str = given["ShardId"]
        return lambda shard: shard.id > after
    if kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP"):
        if "Timestamp" not in given:
            raise invalid(f"ShardFilter of type {kind} needs a Timestamp")
        at = given["Timestamp"]
        if at > now + 1:
            raise invalid(f"ShardFilter timestamp {at} is in the future. Current timestamp: {now:.3f}")
        if at < horizon:
            at = horizon
    elif kind == "AT_TRIM_HORIZON":
        at = horizon
    elif kind == "FROM_TRIM_HORIZON":
        # Do not limit this to the stream's creation time: if the clock was set back, shards may have closed before that time.
        at = stream.horizon(now)
    elif kind == "AT_LATEST":
        return lambda shard: not shard.closed
    else:
        raise invalid(f"ShardFilter type {kind!r} is not known")
    if kind.startswith("FROM"):
        return lambda shard: shard.closed_at is None or shard.closed_at >= at
    return lambda shard: shard.created_at <= at and (shard.closed_at is None or shard.closed_at >= at)


def split_shard(kinesis: Kinesis, params: Params) -> Params:
    """Handle a SplitShard request."""
    stream = _reshardable(kinesis, params)
    shard_id, at = params["ShardToSplit"], _hash_key(params["NewStartingHashKey"])
    stream.check_split(shard_id, at)
    kinesis.check_shard_limit(1)
    kinesis.update(stream, lambda now: stream.split(shard_id, at, now))
    return {}


def merge_shards(kinesis: Kinesis, params: Params) -> Params:
    """Handle a MergeShards request."""
    stream = _reshardable(kinesis, params)
    first, second = params["ShardToMerge"], params["AdjacentShardToMerge"]
    stream.check_merge(first, second)
    kinesis.update(stream, lambda now: stream.merge(first, second, now))
    return {}


def update_shard_count(kinesis: Kinesis, params: Params) -> Params:
    """Handle an UpdateShardCount request. The target must be between half and double the current count."""
    stream = _reshardable(kinesis, params)
    current, target = len(stream.open_shards), params["TargetShardCount"]
    if target > 2 * current or target < (current + 1) // 2:
        raise limit_exceeded(
            f"UpdateShardCount cannot scale from {current} to {target}: the target must be between {(current + 1) // 2} (half) "
            f"and {2 * current} (double) shards."
        )
    kinesis.check_shard_limit(target - current)
    kinesis.update(stream, lambda now: stream.scale(target, now))
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }


def _reshardable(kinesis: Kinesis, params: Params) -> Stream:
    stream = kinesis.stream(params)
    stream.check_active()
    if stream.traits.mode == "ON_DEMAND":
        raise AwsError("ValidationException", f"Stream {stream.name} is ON_DEMAND: Kinesis reshards it by itself")
    return stream


def _hash_key(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 39 and int(text) <= MAX_HASH):
        raise invalid(f"NewStartingHashKey must be a number from 0 to 2^128-1; got {text!r}")
    return int(text)


def register_stream_consumer(kinesis: Kinesis, params: Params) -> Params:
    """Handle a RegisterStreamConsumer request."""
    stream = kinesis.stream({"StreamARN": params["StreamARN"]})
    stream.check_active()
    consumer = kinesis.register_consumer(stream, params["ConsumerName"], dict(params.get("Tags", {})))
    return {"Consumer": consumer.describe(with_stream=False)}


def deregister_stream_consumer(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DeregisterStreamConsumer request."""
    kinesis.deregister_consumer(kinesis.consumer_named(params))
    return {}


def describe_stream_consumer(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DescribeStreamConsumer request."""
    return {"ConsumerDescription": kinesis.consumer_named(params).describe(with_stream=True)}


def list_stream_consumers(kinesis: Kinesis, params: Params) -> Params:
    """Handle a ListStreamConsumers request."""
    stream = kinesis.stream({"StreamARN": params["StreamARN"]})
    after, limit = _token(params, "consumers").get("after", ""), params.get("MaxResults", 100)
    left = [consumer for name, consumer in sorted(stream.consumers.items()) if name > after]
    shown: Params = {"Consumers": [consumer.describe(with_stream=False) for consumer in left[:limit]]}
    if len(left) > limit:
        shown["NextToken"] = seal({"list": "consumers", "after": left[limit - 1].name, "issued": kinesis.now().wall})
    return shown


def _token(params: Params, kind: str) -> Params:
    if not params.get("NextToken"):
        return {}
    token = open_token(params["NextToken"])
    if token is None or token.get("list") != kind:
        raise invalid("Invalid NextToken.")
    return token


def create_queue(kinesis: Kinesis, params: Params) -> Params:
    """Handle a CreateQueue request. Checks its parameters here, because botocore before version 1.44 lacks the operation."""
    configured = params.get("StreamConfigurationList") or []
    if len(configured) != 1 or not params.get("QueueName"):
        raise invalid("QueueName, and one StreamConfiguration, must be provided.")
    stream, name = kinesis.stream({"StreamARN": configured[0].get("StreamARN")}), params["QueueName"]
    kinesis.create_queue(stream, name)
    return {"QueueDescription": _queue(stream, name) | {"StreamConfigurationList": configured}}


def delete_queue(kinesis: Kinesis, params: Params) -> None:
    """Handle a DeleteQueue request."""
    for stream in kinesis.streams.values():
        for name in stream.queues:
            if _queue(stream, name)["QueueARN"] == params.get("QueueARN"):
                del stream.queues[name]
                return
    raise not_found(f"Queue {params.get('QueueARN')} not found for account {kinesis.account_id}.")


def _queue(stream: Stream, name: str) -> Params:
    return {
        "QueueName": name,
        "QueueARN": f"{stream.arn.partition(':stream/')[0]}:queue/{name}",
        "QueueStatus": "ACTIVE",
        "QueueCreationTimestamp": stream.queues[name],
    }


Operation = Callable[[Kinesis, Params], Any]
OPERATIONS: dict[str, Operation] = {
    "CreateQueue": create_queue,
    "CreateStream": create_stream,
    "DeleteQueue": delete_queue,
    "DeleteStream": delete_stream,
    "DeregisterStreamConsumer": deregister_stream_consumer,
    "DescribeStream": describe_stream,
    "DescribeStreamConsumer": describe_stream_consumer,
    "DescribeStreamSummary": describe_stream_summary,
    "GetRecords": get_records,
    "GetShardIterator": get_shard_iterator,
    "ListShards": list_shards,
    "ListStreamConsumers": list_stream_consumers,
    "ListStreams": list_streams,
    "MergeShards": merge_shards,
    "RegisterStreamConsumer": register_stream_consumer,
    "SplitShard": split_shard,
    "UpdateShardCount": update_shard_count,
}
