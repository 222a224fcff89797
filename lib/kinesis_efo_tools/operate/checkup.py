"""Checks of an application's streams and consumers, one function each. They do not change or register anything."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from kinesis_efo.aws import pages_of, token_only
from kinesis_efo.aws_errors import CALL_ERRORS
from kinesis_efo.manifest import StreamRef
from kinesis_efo.records.distribution import Distribution, distribution_of, on_demand
from kinesis_efo_tools.operate.access import Clients
from kinesis_efo_tools.operate.findings import CheckFailed, CheckUnknown, Finding, existing, finding

CONSUMER_QUOTA: Final = 20
"""Maximum consumers per stream, unless AWS raised the quota (Kinesis Data Streams, "Quotas and limits")."""
ADVANTAGE_QUOTA: Final = 50
"""Maximum consumers per on-demand stream in an account with On-demand Advantage."""

_DISTRIBUTIONS: Final = {
    Distribution.KEYED: "distributed by partition key",
    Distribution.AUTO: "distributed by Kinesis itself (AUTO)",
    Distribution.UNKNOWN: "distributed in a way that this botocore does not know",
}

RATE_WINDOW: Final = timedelta(hours=1)
"""The check searches for rejected subscriptions in this period, which ends now."""


async def stream(clients: Clients, ref: StreamRef) -> Finding:
    """Check that the stream exists and can be read."""

    async def look() -> str:
        kinesis = await clients.client("kinesis")
        with existing(f"{ref.stream_arn} does not exist", "deploy it, to this account and region"):
            answer = await kinesis.describe_stream_summary(StreamARN=ref.stream_arn)
        found = answer["StreamDescriptionSummary"]
        status = found["StreamStatus"]
        if status not in ("ACTIVE", "UPDATING"):
            raise CheckFailed(
                f"{ref.stream_arn} is {status}", "wait until it is ACTIVE" if status == "CREATING" else "deploy it"
            )
        shards, hours = found["OpenShardCount"], found["RetentionPeriodHours"]
        words = [f"{shards} open shard{'s'[: shards != 1]}", f"{hours} h retention", _encryption(found)]
        return ", ".join([status, *words, _DISTRIBUTIONS[distribution_of(kinesis, found)]])

    return await finding(f"stream {ref.name}", look(), action="kinesis:DescribeStreamSummary")


async def consumer(clients: Clients, ref: StreamRef) -> Finding:
    """Check that the manifest's consumer exists and is ACTIVE."""

    async def look() -> str:
        kinesis = await clients.client("kinesis")
        with existing(
            f"{ref.consumer_arn} does not exist (any more)",
            "deploy again, so that the manifest names the existing consumer, and restart the query",
        ):
            answer = await kinesis.describe_stream_consumer(ConsumerARN=ref.consumer_arn)
        status = answer["ConsumerDescription"]["ConsumerStatus"]
        if status != "ACTIVE":
            raise CheckFailed(
                f"{ref.consumer_arn} is {status}", "wait until it is ACTIVE" if status == "CREATING" else "deploy it"
            )
        return f"ACTIVE, {ref.stream_name}, consumer {consumer_name(ref)}"

    return await finding(f"consumer of {ref.name}", look(), action="kinesis:DescribeStreamConsumer")


async def shards(clients: Clients, ref: StreamRef) -> Finding:
    """Check that the stream's shards can be listed."""

    async def look() -> str:
        kinesis = await clients.client("kinesis")
        with existing(f"{ref.stream_arn} does not exist", "deploy it, to this account and region"):
            answer = await kinesis.list_shards(StreamARN=ref.stream_arn, MaxResults=1)
        if not answer["Shards"]:
            raise CheckFailed(
                "the stream has no shards", "look at the stream: it was just created, or is being deleted"
            )
        return "can be listed"

    return await finding(f"shards of {ref.name}", look(), action="kinesis:ListShards")


async def consumer_quota(clients: Clients, ref: StreamRef) -> Finding:
    """Check that the stream's consumer quota is not used up."""

    async def look() -> str:
        with existing(f"{ref.stream_arn} does not exist", "deploy it"):
            kinesis = await clients.client("kinesis")
            names = await consumers_of(kinesis, ref.stream_arn)
            answer = await kinesis.describe_stream_summary(StreamARN=ref.stream_arn)
        found = answer["StreamDescriptionSummary"]
        # Only on-demand streams have queues. Older versions of botocore omit QueueCount from responses.
        shown, queues = "QueueCount" in found or not on_demand(found), found.get("QueueCount", 0)
        taken = len(names) + queues
        words = f", {queues} of them queues" if queues else ""
        words += "" if shown else ", and its queues, which count as consumers, and which this botocore does not show"
        quota, unless = await _quota(kinesis) if on_demand(found) else (CONSUMER_QUOTA, "AWS raised it")
        if taken >= quota:
            raise CheckUnknown(
                f"{taken} consumers{words}: {quota} is the quota, unless {unless}",
                "before you declare another, remove one that is not used, or have the quota raised",
            )
        return f"{taken} of {quota} consumers{words}"

    return await finding(f"quota of {ref.name}", look(), action="kinesis:ListStreamConsumers", needed=False)


async def _quota(kinesis: Any) -> tuple[int, str]:
    """Return an on-demand stream's consumer quota, and a phrase for the message that names when another quota applies."""
    try:
        answer = await kinesis.describe_account_settings()
    # AttributeError: older versions of botocore do not have this operation.
    except (*CALL_ERRORS, AttributeError):
        return CONSUMER_QUOTA, f"AWS raised it or with On-demand Advantage ({ADVANTAGE_QUOTA})"
    committed = answer["MinimumThroughputBillingCommitment"]["Status"] != "DISABLED"
    return ADVANTAGE_QUOTA if committed else CONSUMER_QUOTA, "AWS raised it"


async def subscribe_rate(clients: Clients, ref: StreamRef, now: datetime) -> Finding:
    """Check for recently rejected subscriptions. They are caused by a second reader, or by more than one call per second and shard."""

    async def look() -> str:
        cloudwatch = await clients.client("cloudwatch")
        answer = await cloudwatch.get_metric_data(
            MetricDataQueries=[
                {
                    "Id": "refused",
                    "MetricStat": {
                        "Metric": {
                            "Namespace": "AWS/Kinesis",
                            "MetricName": "SubscribeToShard.RateExceeded",
                            "Dimensions": [
                                {"Name": "StreamName", "Value": ref.stream_name},
                                {"Name": "ConsumerName", "Value": consumer_name(ref)},
                            ],
                        },
                        "Period": 300,
                        "Stat": "Sum",
                    },
                }
            ],
            StartTime=now - RATE_WINDOW,
            EndTime=now + timedelta(minutes=1),  # exclusive, so add a minute to include the current one
        )
        values = answer["MetricDataResults"][0]["Values"]
        if not values:
            raise CheckUnknown(
                "CloudWatch has no figures of the last hour", "if a query runs, check again in some minutes"
            )
        if refused := round(sum(values)):
            raise CheckFailed(
                f"{refused} subscriptions refused in the last hour",
                "find the other reader of this consumer: every application needs its own",
            )
        return "no subscription refused in the last hour"

    return await finding(f"subscribe rate of {ref.name}", look(), action="cloudwatch:GetMetricData", needed=False)


async def consumers_of(kinesis: Any, stream_arn: str) -> dict[str, dict[str, Any]]:
    """Return the consumers of a stream by name, each as ListStreamConsumers describes it."""
    call = partial(kinesis.list_stream_consumers, StreamARN=stream_arn, MaxResults=100)
    pages = pages_of("ListStreamConsumers", call, {}, token_only)
    return {each["ConsumerName"]: each async for page in pages for each in page["Consumers"]}


def consumer_name(ref: StreamRef) -> str:
    """Return the consumer's name, from its ARN."""
    return (ref.consumer_arn or "").rpartition("/")[2].partition(":")[0]


def _encryption(summary: dict[str, Any]) -> str:
    return f"encrypted with {summary['KeyId']}" if summary.get("EncryptionType") == "KMS" else "not encrypted"
