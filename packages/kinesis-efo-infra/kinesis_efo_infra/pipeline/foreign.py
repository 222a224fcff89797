"""Finds undeclared consumers on the environments' own streams: they are billed, and count against a stream's quota."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import ClientError

from kinesis_efo_infra.errors import PipelineError
from kinesis_efo_infra.pipeline.aws import asking
from kinesis_efo_infra.pipeline.bill import HOURS
from kinesis_efo_infra.pipeline.deployment import Deployment, consumers_at_most
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_infra.pipeline.prices import Prices, prices_of

logger = logging.getLogger(__name__)

MANY_QUEUES = 5
"""With a boto3 version that does not return a stream's queues, which count as consumers, too: warn if the stream's quota leaves room for
fewer consumers than this."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A consumer that no environment declares.

    Attributes:
        stream: Name of the consumer's stream.
        consumer: ARN of the consumer.
        since: Date on which the consumer was registered.
        count: Number of all consumers of the stream.
        usd: Monthly cost of the consumer's hours in dollars; None if unknown. Each GB is billed in addition.
    """

    stream: str
    consumer: str
    since: str
    count: int
    usd: float | None = None


def foreign_consumers(kinesis: Any, deployment: Deployment) -> Sequence[Foreign]:
    """Return the consumers on a deployment's own streams that are neither in its `consumers` nor in its `expected`.

    Args:
        kinesis: A boto3 client of Kinesis.
        deployment: The deployment whose streams are checked.

    Raises:
        AwsError: There are no credentials, or AWS cannot be reached.
        PipelineError: A stream's consumers cannot be listed.
    """
    found = []
    for arn, name in deployment.streams.items():
        with asking(deployment.account_id):
            there = _consumers(kinesis, arn)
            named = [(each, each["ConsumerName"]) for each in there]
            foreign = [
                each
                for each, called in named
                if (arn, called) not in deployment.consumers and called not in deployment.expected
            ]
            usd = _hours_usd(kinesis, arn, prices_of(deployment.region)) if foreign else None
        for each in foreign:
            since = each["ConsumerCreationTimestamp"].date().isoformat()
            found.append(Foreign(name, each["ConsumerARN"], since, len(there), usd))
    return found


def beyond_quota(kinesis: Any, deployment: Deployment, plan: Plan) -> list[str]:
    """Return a message for each stream that would have more consumers than AWS allows, including consumers registered elsewhere.

    Args:
        kinesis: A boto3 client of Kinesis.
        deployment: The deployment of the plan.
        plan: The plan.

    Raises:
        AwsError: There are no credentials, or AWS cannot be reached.
    """
    root = plan.get("configuration", {}).get("root_module", {})
    refers = {each["address"]: each.get("expressions", {}) for each in root.get("resources", [])}
    added, gone = Counter[str](), Counter[str]()
    for each in plan.get("resource_changes", []):
        change = each["change"]
        if each["type"] == "aws_kinesis_stream_consumer":
            written = refers.get(each["address"].partition("[")[0], {}).get("stream_arn", {}).get("references") or ["?"]
            # Use the reference to a stream that the plan creates: its ARN is not known yet.
            if "create" in change["actions"]:
                added[(change.get("after") or {}).get("stream_arn") or written[0]] += 1
            if "delete" in change["actions"]:
                gone[str((change.get("before") or {}).get("stream_arn"))] += 1
    found = []
    for stream, more in added.items():
        try:
            with asking(deployment.account_id):
                present = len(_consumers(kinesis, stream)) if stream.startswith("arn:") else 0
                summary = _summary(kinesis, stream) if stream.startswith("arn:") else {"QueueCount": 0}
        except PipelineError as error:
            logger.warning("not known whether %s has room for %s more consumers: %s", stream, more, error)
            continue
        total = present - gone[stream] + more
        # A provisioned stream has no queues, which count as consumers, and does not get the larger quota of On-demand Advantage.
        quota = consumers_at_most(advantage=deployment.on_demand_advantage and not _provisioned(summary))
        queues = 0 if _provisioned(summary) else summary.get("QueueCount")
        if queues is None and total <= quota < total + MANY_QUEUES:
            logger.warning(
                "%s: %s of %s consumers; a queue counts as a consumer, and this version of boto3 does not show queues",
                stream,
                total,
                quota,
            )
        if total + (queues or 0) > quota:
            and_queues = f" and {queues} queues, which count as consumers" if queues else ""
            found.append(
                f"{stream}: has {present} consumers{and_queues}; this plan registers {more} and removes {gone[stream]}, and AWS allows {quota}: it "
                "would fail half way. Deregister one that nobody needs (`aws kinesis list-stream-consumers`), let the application "
                "poll, or raise the quota (docs/pipeline.md#when-it-is-stuck)"
            )
    return found


def as_planned(deployment: Deployment, plan: Plan) -> Deployment:
    """Return a deployment with the streams and consumers from its Terraform state. The settings of a user's own app do not contain these.

    Args:
        deployment: The deployment.
        plan: A plan of the deployment; its values before the changes are those of the state.
    """
    there = [(each["type"], each["change"].get("before") or {}) for each in plan.get("resource_changes", [])]
    return replace(
        deployment,
        streams={
            each["arn"]: each.get("name", "")
            for kind, each in there
            if kind == "aws_kinesis_stream" and each.get("arn")
        },
        consumers=frozenset(
            (each["stream_arn"], each.get("name", ""))
            for kind, each in there
            if kind == "aws_kinesis_stream_consumer" and each.get("stream_arn")
        ),
    )


def _summary(kinesis: Any, arn: str) -> Mapping[str, Any]:
    """Return the DescribeStreamSummary response for a stream; empty if the call is denied or the stream does not exist."""
    try:
        found: Mapping[str, Any] = kinesis.describe_stream_summary(StreamARN=arn)["StreamDescriptionSummary"]
    except ClientError:
        return {}
    return found


def _provisioned(stream: Mapping[str, Any]) -> bool:
    return bool((stream.get("StreamModeDetails") or {}).get("StreamMode") == "PROVISIONED")


def _hours_usd(kinesis: Any, arn: str, prices: Prices | None) -> float | None:
    """Return the monthly cost of a consumer's hours in dollars; None if the stream or its price is unknown."""
    stream = _summary(kinesis, arn)
    if stream.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND":
        return 0.0
    return (
        None if prices is None or not stream else float(stream["OpenShardCount"] * HOURS * prices.consumer_shard_hour)
    )


def _consumers(kinesis: Any, arn: str) -> list[dict[str, Any]]:
    try:
        pages = kinesis.get_paginator("list_stream_consumers").paginate(StreamARN=arn)
        return [each for page in pages for each in page["Consumers"] if each["ConsumerStatus"] != "DELETING"]
    except ClientError as error:
        # Skip a deleted stream: the drift plan already shows it.
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return []
        raise PipelineError(
            f"the consumers of {arn} cannot be listed: {error}; the role that plans needs kinesis:ListStreamConsumers "
            "(`make bootstrap` declares it)"
        ) from error
