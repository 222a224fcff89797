"""The operations on a stream's retention, record size, mode, metrics, tags, encryption and resource policies, and DescribeLimits.

Encryption and policies are stored and returned, but not enforced: the local AWS has no identities, and its KMS keys are moto's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .consumers import Consumer
from .errors import AwsError, invalid, not_found
from .state import HOUR, Kinesis
from .streams import KEYED, Moment, Stream, Traits

Params = dict[str, Any]
MAX_RETENTION_HOURS = 8760
MAX_TAGS = 50
MAX_POLICY_BYTES = 20 * 1024
SHARD_METRICS = (
    "IncomingBytes",
    "IncomingRecords",
    "IteratorAgeMilliseconds",
    "OutgoingBytes",
    "OutgoingRecords",
    "ReadProvisionedThroughputExceeded",
    "WriteProvisionedThroughputExceeded",
)
"""The shard-level metrics that `ALL` stands for."""


def increase_retention(kinesis: Kinesis, params: Params) -> Params:
    """Handle an IncreaseStreamRetentionPeriod request."""
    return _retain(kinesis.stream(params), params["RetentionPeriodHours"], longer=True)


def decrease_retention(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DecreaseStreamRetentionPeriod request. Records older than the new period expire at once."""
    return _retain(kinesis.stream(params), params["RetentionPeriodHours"], longer=False)


def _retain(stream: Stream, hours: int, *, longer: bool) -> Params:
    before = stream.traits.retention_seconds
    if hours * HOUR < before if longer else hours * HOUR > before:
        wrong, other = ("shorter", "Decrease") if longer else ("longer", "Increase")
        raise invalid(
            f"Requested retention period ({hours} hours) for stream {stream.name} can not be {wrong} than existing retention period "
            f"({before / HOUR:g} hours). Use {other}RetentionPeriod API."
        )
    if not 24 <= hours <= MAX_RETENTION_HOURS:
        raise invalid(f"Retention period must be between 24 and {MAX_RETENTION_HOURS} hours; got {hours}")
    stream.check_active()
    stream.traits.retention_seconds = hours * HOUR
    return {}


def update_max_record_size(kinesis: Kinesis, params: Params) -> Params:
    """Handle an UpdateMaxRecordSize request."""
    stream = kinesis.stream(params)
    stream.check_active()
    stream.traits.max_record_bytes = params["MaxRecordSizeInKiB"] * 1024
    return {}


def update_stream_mode(kinesis: Kinesis, params: Params) -> Params:
    """Handle an UpdateStreamMode request. The shards do not change; a provisioned stream always distributes records by their keys."""
    stream = kinesis.stream(params)
    stream.check_active()
    mode = params["StreamModeDetails"]["StreamMode"]
    warm = warm_throughput(mode, params)
    stream.traits.mode = mode
    if mode == "PROVISIONED":
        stream.traits.distribution = KEYED
        stream.traits.warm_mib = stream.traits.warm_target_mib = None
    if warm is not None:
        stream.traits.warm_mib = stream.traits.warm_target_mib = warm
    return {}


def warm_throughput(mode: str, params: Params) -> int | None:
    """Return the warm throughput that a request specifies, in MiB/s.

    Raises AwsError `InvalidArgumentException` if the stream is provisioned.
    """
    warm: int | None = params.get("WarmThroughputMiBps")
    if warm is not None and mode != "ON_DEMAND":
        raise invalid("WarmThroughputMiBps is only supported for a stream with StreamMode ON_DEMAND")
    return warm


def update_stream_warm_throughput(kinesis: Kinesis, params: Params) -> Params:
    """Handle an UpdateStreamWarmThroughput request. The number of shards does not change."""
    stream = kinesis.stream(params)
    stream.check_active()
    traits, target = stream.traits, warm_throughput(stream.traits.mode, params)
    traits.warm_target_mib = target

    def reach(_: Moment) -> None:
        traits.warm_mib = target

    kinesis.update(stream, reach)
    return {"StreamName": stream.name, "StreamARN": stream.arn, **traits.warm_throughput}


def describe_account_settings(kinesis: Kinesis, params: Params) -> Params:  # noqa: ARG001
    """Handle a DescribeAccountSettings request. The account has the billing commitment that warm throughput requires."""
    return {"MinimumThroughputBillingCommitment": {"Status": "ENABLED"}}


def update_record_distribution_strategy(kinesis: Kinesis, params: Params) -> Params:
    """Handle an UpdateStreamRecordDistributionStrategy request. The strategy applies to records that are put from now on."""
    stream = kinesis.stream({"StreamARN": params["StreamARN"]})
    stream.check_active()
    if stream.traits.mode != "ON_DEMAND":
        raise invalid(
            f"RecordDistributionStrategy is only supported for streams with StreamMode ON_DEMAND; {stream.name} is PROVISIONED"
        )
    stream.traits.distribution = params["RecordDistributionStrategy"]
    return {}


def enable_enhanced_monitoring(kinesis: Kinesis, params: Params) -> Params:
    """Handle an EnableEnhancedMonitoring request."""
    return _monitor(kinesis, params, lambda reported, named: reported | named)


def disable_enhanced_monitoring(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DisableEnhancedMonitoring request."""
    return _monitor(kinesis, params, lambda reported, named: reported - named)


def _monitor(kinesis: Kinesis, params: Params, change: Callable[[set[str], set[str]], set[str]]) -> Params:
    stream = kinesis.stream(params)
    stream.check_active()
    before, named = stream.traits.shard_metrics, set(params["ShardLevelMetrics"])
    stream.traits.shard_metrics = sorted(change(set(before), set(SHARD_METRICS) if "ALL" in named else named))
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardLevelMetrics": before,
        "DesiredShardLevelMetrics": stream.traits.shard_metrics,
    }


def describe_limits(kinesis: Kinesis, params: Params) -> Params:  # noqa: ARG001
    """Handle a DescribeLimits request."""
    streams = kinesis.streams.values()
    return {
        "ShardLimit": kinesis.settings.max_shards,
        "OpenShardCount": sum(len(stream.open_shards) for stream in streams),
        "OnDemandStreamCount": sum(stream.traits.mode == "ON_DEMAND" for stream in streams),
        "OnDemandStreamCountLimit": 50,
    }


def add_tags_to_stream(kinesis: Kinesis, params: Params) -> Params:
    """Handle an AddTagsToStream request."""
    _add(kinesis.stream(params).traits.tags, params["Tags"])
    return {}


def remove_tags_from_stream(kinesis: Kinesis, params: Params) -> Params:
    """Handle a RemoveTagsFromStream request."""
    _remove(kinesis.stream(params).traits.tags, params["TagKeys"])
    return {}


def list_tags_for_stream(kinesis: Kinesis, params: Params) -> Params:
    """Handle a ListTagsForStream request."""
    tags = sorted(kinesis.stream(params).traits.tags.items())
    left = [(key, value) for key, value in tags if key > params.get("ExclusiveStartTagKey", "")]
    limit = params.get("Limit", MAX_TAGS)
    return {"Tags": _pairs(left[:limit]), "HasMoreTags": len(left) > limit}


def tag_resource(kinesis: Kinesis, params: Params) -> Params:
    """Handle a TagResource request for a stream or a consumer."""
    _add(_resource(kinesis, params["ResourceARN"]).tags, params["Tags"])
    return {}


def untag_resource(kinesis: Kinesis, params: Params) -> Params:
    """Handle an UntagResource request for a stream or a consumer."""
    _remove(_resource(kinesis, params["ResourceARN"]).tags, params["TagKeys"])
    return {}


def list_tags_for_resource(kinesis: Kinesis, params: Params) -> Params:
    """Handle a ListTagsForResource request for a stream or a consumer."""
    return {"Tags": _pairs(sorted(_resource(kinesis, params["ResourceARN"]).tags.items()))}


def start_stream_encryption(kinesis: Kinesis, params: Params) -> Params:
    """Handle a StartStreamEncryption request. A stream that is already encrypted changes to the new key."""
    stream = _encryptable(kinesis, params)
    kinesis.update(stream, lambda _: _encrypt(stream, params["KeyId"]))
    return {}


def stop_stream_encryption(kinesis: Kinesis, params: Params) -> Params:
    """Handle a StopStreamEncryption request."""
    stream = _encryptable(kinesis, params)
    kinesis.update(stream, lambda _: _encrypt(stream, None))
    return {}


def _encryptable(kinesis: Kinesis, params: Params) -> Stream:
    if params["EncryptionType"] != "KMS":
        raise invalid(
            f"EncryptionType must be KMS, the only one there is to start or stop; got {params['EncryptionType']}"
        )
    stream = kinesis.stream(params)
    stream.check_active()
    return stream


def _encrypt(stream: Stream, key_id: str | None) -> None:
    stream.traits.key_id = key_id


def put_resource_policy(kinesis: Kinesis, params: Params) -> Params:
    """Handle a PutResourcePolicy request for a stream or a consumer; replaces the whole policy."""
    resource = _resource(kinesis, params["ResourceARN"])
    _check_policy(params["Policy"], params["ResourceARN"])
    resource.policy = params["Policy"]
    return {}


def get_resource_policy(kinesis: Kinesis, params: Params) -> Params:
    """Handle a GetResourcePolicy request. Returns an empty policy if there is none."""
    return {"Policy": _resource(kinesis, params["ResourceARN"]).policy or "{}"}


def delete_resource_policy(kinesis: Kinesis, params: Params) -> Params:
    """Handle a DeleteResourcePolicy request."""
    resource = _resource(kinesis, params["ResourceARN"])
    if resource.policy is None:
        raise not_found(f"No resource policy found for resource ARN {params['ResourceARN']}.")
    resource.policy = None
    return {}


def _resource(kinesis: Kinesis, arn: str) -> Traits | Consumer:
    """The object with the tags and policy of a resource: a consumer, or a stream's traits."""
    if "/consumer/" in arn:
        return kinesis.consumer(arn)
    return kinesis.stream({"StreamARN": arn}).traits


def _add(tags: dict[str, str], more: dict[str, str]) -> None:
    if len(tags | more) > MAX_TAGS:
        raise AwsError(
            "InvalidArgumentException", f"A resource can have {MAX_TAGS} tags; this would make {len(tags | more)}"
        )
    tags.update(more)


def _remove(tags: dict[str, str], keys: list[str]) -> None:
    for key in keys:
        tags.pop(key, None)


def _pairs(tags: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags]


def _check_policy(text: str, arn: str) -> None:
    """Check a resource policy, except for its principals, because the local AWS has no identities.

    Raises AwsError `InvalidArgumentException` if the policy is too long, is not JSON, or has a statement that is incomplete or
    names another resource.
    """
    if len(text.encode()) > MAX_POLICY_BYTES:
        raise invalid(f"The policy of {arn} has {len(text.encode())} bytes; it may have {MAX_POLICY_BYTES}")
    try:
        policy = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as wrong:
        raise invalid(f"The policy of {arn} is not a JSON object: {wrong}") from None
    statements = _listed(policy.get("Statement", []))
    if not statements:
        raise invalid(f"The policy of {arn} has no Statement")
    for statement in statements:
        if not isinstance(statement, dict):
            raise invalid(f"The policy of {arn} has a Statement that is not an object: {statement!r}")
        if missing := [part for part in ("Effect", "Principal", "Action", "Resource") if not statement.get(part)]:
            raise invalid(f"The policy of {arn} has a Statement without {' and '.join(missing)}")
        if others := [each for each in _listed(statement["Resource"]) if each != arn]:
            raise invalid(f"The policy of {arn} has a Statement for another Resource: {others[0]}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


OPERATIONS: dict[str, Callable[[Kinesis, Params], Params]] = {
    "AddTagsToStream": add_tags_to_stream,
    "DecreaseStreamRetentionPeriod": decrease_retention,
    "DeleteResourcePolicy": delete_resource_policy,
    "DescribeAccountSettings": describe_account_settings,
    "DescribeLimits": describe_limits,
    "DisableEnhancedMonitoring": disable_enhanced_monitoring,
    "EnableEnhancedMonitoring": enable_enhanced_monitoring,
    "GetResourcePolicy": get_resource_policy,
    "IncreaseStreamRetentionPeriod": increase_retention,
    "ListTagsForResource": list_tags_for_resource,
    "ListTagsForStream": list_tags_for_stream,
    "PutResourcePolicy": put_resource_policy,
    "RemoveTagsFromStream": remove_tags_from_stream,
    "StartStreamEncryption": start_stream_encryption,
    "StopStreamEncryption": stop_stream_encryption,
    "TagResource": tag_resource,
    "UntagResource": untag_resource,
    "UpdateMaxRecordSize": update_max_record_size,
    "UpdateStreamMode": update_stream_mode,
    "UpdateStreamRecordDistributionStrategy": update_record_distribution_strategy,
    "UpdateStreamWarmThroughput": update_stream_warm_throughput,
}
