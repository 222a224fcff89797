"""Consumers on the environments' own streams that nobody declared: they are billed, and a stream has few of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from infra import names
from infra.aws import asking
from infra.errors import PipelineError
from infra.pipeline.bill import HOURS
from infra.pipeline.prices import Prices, prices_of
from infra.settings import Environment, OwnStream


@dataclass(frozen=True, slots=True)
class Foreign:
    """A consumer that no environment declares.

    Attributes:
        stream: Name of its stream.
        consumer: Its ARN.
        since: When it was registered, as a date.
        count: How many consumers the stream has.
        usd: What its hours cost a month, in dollars; None if that is not known. Each GB is billed as well.
    """

    stream: str
    consumer: str
    since: str
    count: int
    usd: float | None = None


def foreign_consumers(kinesis: Any, environment: Environment, all_of_them: Iterable[Environment]) -> Sequence[Foreign]:
    """The consumers on an environment's own streams that are neither declared nor expected.

    Args:
        kinesis: A boto3 client.
        environment: The environment whose streams are looked at.
        all_of_them: All environments: another one may declare consumers on these streams.

    Raises:
        AwsError: There are no credentials, or AWS cannot be reached.
        PipelineError: A stream's consumers cannot be listed.
    """
    declared = set(_declared(all_of_them))
    found = []
    for key, stream in environment.streams.items():
        if not isinstance(stream, OwnStream):
            continue
        arn = names.stream_arn(environment, key)
        with asking(environment.account_id):
            there = _consumers(kinesis, arn)
        expected = stream.other_consumers
        foreign = [
            each
            for each in there
            if (arn, each["ConsumerName"]) not in declared and each["ConsumerName"] not in expected
        ]
        with asking(environment.account_id):
            usd = _hours_usd(kinesis, arn, prices_of(environment.region)) if foreign else None
        for each in foreign:
            since = each["ConsumerCreationTimestamp"].date().isoformat()
            found.append(Foreign(names.stream_name(environment, key), each["ConsumerARN"], since, len(there), usd))
    return found


def _hours_usd(kinesis: Any, arn: str, prices: Prices | None) -> float | None:
    """What the hours of a consumer cost a month; None if the stream, or its price, is not known."""
    try:
        stream = kinesis.describe_stream_summary(StreamARN=arn)["StreamDescriptionSummary"]
    except ClientError:
        return None
    if stream.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND":
        return 0.0
    return None if prices is None else float(stream["OpenShardCount"] * HOURS * prices.consumer_shard_hour)


def _declared(environments: Iterable[Environment]) -> Iterable[tuple[str, str]]:
    """Stream ARN and name of each consumer that an application declares, or was given."""
    for environment in environments:
        for key, application in environment.applications.items():
            for stream in application.streams if application.subscribes else ():
                yield names.stream_arn(environment, stream), names.consumer_name(environment, stream, key)


def _consumers(kinesis: Any, arn: str) -> list[dict[str, Any]]:
    try:
        pages = kinesis.get_paginator("list_stream_consumers").paginate(StreamARN=arn)
        return [each for page in pages for each in page["Consumers"] if each["ConsumerStatus"] != "DELETING"]
    except ClientError as error:
        # A stream that is gone is in the plan that looks for drift.
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return []
        raise PipelineError(
            f"the consumers of {arn} cannot be listed: {error}; the role that plans needs kinesis:ListStreamConsumers "
            "(`make bootstrap` declares it)"
        ) from error
