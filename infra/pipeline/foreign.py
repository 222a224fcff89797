"""Consumers on the environments' own streams that nobody declared: they are billed, and a stream has few of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra import names
from infra.errors import PipelineError
from infra.settings import Environment, OwnStream


@dataclass(frozen=True, slots=True)
class Foreign:
    """A consumer that no environment declares.

    Attributes:
        stream: Name of its stream.
        consumer: Its ARN.
        since: When it was registered, as a date.
        count: How many consumers the stream has.
    """

    stream: str
    consumer: str
    since: str
    count: int


def foreign_consumers(kinesis: Any, environment: Environment, all_of_them: Iterable[Environment]) -> Sequence[Foreign]:
    """The consumers on an environment's own streams that are neither declared nor expected.

    Args:
        kinesis: A boto3 client.
        environment: The environment whose streams are looked at.
        all_of_them: All environments: another one may declare consumers on these streams.

    Raises:
        PipelineError: A stream's consumers cannot be listed.
    """
    declared = set(_declared(all_of_them))
    found = []
    for key, stream in environment.streams.items():
        if not isinstance(stream, OwnStream):
            continue
        arn = names.stream_arn(environment, key)
        there = _consumers(kinesis, arn)
        for each in there:
            name = each["ConsumerName"]
            if (arn, name) not in declared and name not in stream.other_consumers:
                since = each["ConsumerCreationTimestamp"].date().isoformat()
                found.append(Foreign(names.stream_name(environment, key), each["ConsumerARN"], since, len(there)))
    return found


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
    except (BotoCoreError, ClientError) as error:
        # A stream that is gone is in the plan that looks for drift.
        if isinstance(error, ClientError) and error.response["Error"]["Code"] == "ResourceNotFoundException":
            return []
        raise PipelineError(
            f"the consumers of {arn} cannot be listed: {error}; the role that plans needs kinesis:ListStreamConsumers "
            "(`make bootstrap` declares it)"
        ) from error
