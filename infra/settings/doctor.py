"""Checks, with read-only AWS calls, that the resources that an environment file names exist and have the expected properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from botocore.exceptions import ClientError

from infra.errors import AwsError
from infra.settings.access import Eks, EmrServerless, RoleAccess
from infra.settings.model import AdoptedStream, Environment
from infra.settings.names import Names, keys_of, locations
from kinesis_efo_infra.pipeline.aws import asking
from kinesis_efo_infra.pipeline.deployment import consumers_at_most
from kinesis_efo_infra.pipeline.foreign import MANY_QUEUES

Client = Callable[[str, str], Any]
"""Creates a boto3 client from the names of a service and a region."""
_DENIED = ("AccessDenied", "Unauthorized", "NotAuthorized", "AuthorizationError", "403", "Forbidden")
_UNANSWERED = ("InternalFailure", "UnknownOperation", "InvalidAction", "Throttling", "ServiceUnavailable")
_SPARK = "emr-spark"
"""Prefix of the labels of EMR releases with Spark 4."""


class Verdict(Enum):
    """The result of one check."""

    OK = "ok"
    WRONG = "wrong"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking a setting.

    Attributes:
        path: Path of the setting in the file.
        verdict: The result.
        text: The reason, and what to do; empty if the setting is right.
    """

    path: str
    verdict: Verdict
    text: str = ""

    def __str__(self) -> str:
        return f"{self.verdict.value}: {self.path}: {self.text}" if self.text else f"{self.verdict.value}: {self.path}"


@dataclass(frozen=True, slots=True)
class _Question:
    """A check of one setting. `ask` is called with a client of `service`, and returns what is wrong, or None."""

    path: str
    service: str
    region: str
    ask: Callable[[Any], str | None]


def examine(environment: Environment, client: Client) -> Sequence[Finding]:
    """Check everything that the environment file names but does not declare.

    Args:
        environment: The environment.
        client: Creates boto3 clients.

    Raises:
        AwsError: There are no credentials, they are of another account, or AWS cannot be reached.
    """
    with asking(environment.account_id):
        account = client("sts", environment.region).get_caller_identity()["Account"]
        if account != environment.account_id:
            raise AwsError(
                f"the credentials are of account {account}, and {environment.environment} is in account "
                f"{environment.account_id}: take credentials of that account"
            )
        return [_answer(each, client(each.service, each.region)) for each in _questions(environment)]


class _NotKnown(Exception):
    """Raised if AWS's response does not show whether a setting is right."""


def _answer(question: _Question, client: Any) -> Finding:
    try:
        wrong = question.ask(client)
    except _NotKnown as error:
        return Finding(question.path, Verdict.UNKNOWN, str(error))
    except ClientError as error:
        code, message = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
        if any(code.startswith(each) for each in _DENIED):
            return Finding(question.path, Verdict.UNKNOWN, f"you may not look at it ({code}: {message})")
        if code.startswith(_UNANSWERED) or error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
            return Finding(question.path, Verdict.UNKNOWN, f"AWS gave no answer ({code}: {message})")
        return Finding(question.path, Verdict.WRONG, f"AWS says {code}: {message}")
    return Finding(question.path, Verdict.WRONG if wrong else Verdict.OK, wrong or "")


def _questions(environment: Environment) -> Iterator[_Question]:
    here = environment.region
    yield _Question("region", "kinesis", here, _kinesis_answers)
    yield from _buckets(environment)
    yield from _keys(environment)
    for key, stream in environment.streams.items():
        if isinstance(stream, AdoptedStream):
            yield _Question(f"streams.{key}.existing_arn", "kinesis", here, _stream_is_active(stream))
            for application, arn in stream.consumers.items():
                yield _Question(f"streams.{key}.consumers.{application}", "kinesis", here, _consumer_is_active(arn))
            if (declared := _declared_consumers(environment, key)) and Names(environment).is_ours(key):
                advantage = environment.on_demand_advantage
                there = _has_room(stream.existing_arn, declared, advantage=advantage)
                yield _Question(f"streams.{key}", "kinesis", here, there)
    if (topic := environment.alarms.sns_topic) is not None:
        yield _Question("alarms.sns_topic", "sns", here, _seen("get_topic_attributes", TopicArn=topic))
    yield from _identities(environment)
    yield from _emr(environment)


def _kinesis_answers(kinesis: Any) -> None:
    kinesis.describe_limits()


def _buckets(environment: Environment) -> Iterator[_Question]:
    state_region = environment.state_region or environment.region
    yield _Question("state_bucket", "s3", state_region, _bucket_is_in(environment.state_bucket, state_region))
    if environment.manifest_bucket is not None:
        there = _bucket_is_in(environment.manifest_bucket, environment.region)
        yield _Question("manifest_bucket", "s3", environment.region, there)
    for key, application in environment.applications.items():
        for setting, location in locations(application).items():
            there = _bucket_is_in(location.bucket, None)
            yield _Question(f"applications.{key}.{setting}", "s3", environment.region, there)


def _keys(environment: Environment) -> Iterator[_Question]:
    given = [("key", environment.key)]
    given += [found for key, each in environment.streams.items() for found in keys_of(key, each)]
    given += [
        (f"applications.{key}.output_key", each.output_key or "") for key, each in environment.applications.items()
    ]
    for path, arn in given:
        if arn.startswith("arn:"):
            yield _Question(path, "kms", environment.region, _key_is_enabled(arn))


def _identities(environment: Environment) -> Iterator[_Question]:
    here = environment.region
    for key, application in environment.applications.items():
        access, path = application.access, f"applications.{key}.access"
        if isinstance(access, RoleAccess):
            for number, arn in enumerate(access.policies):
                yield _Question(f"{path}.policies.{number}", "iam", here, _seen("get_policy", PolicyArn=arn))
            if access.permissions_boundary is not None:
                there = _seen("get_policy", PolicyArn=access.permissions_boundary)
                yield _Question(f"{path}.permissions_boundary", "iam", here, there)
        if isinstance(access, Eks):
            if access.oidc_provider_arn is not None:
                there = _seen("get_open_id_connect_provider", OpenIDConnectProviderArn=access.oidc_provider_arn)
                yield _Question(f"{path}.oidc_provider_arn", "iam", here, there)
            if access.cluster is not None:
                yield _Question(f"{path}.cluster", "eks", here, _seen("describe_cluster", name=access.cluster))
    if (pipeline := environment.pipeline) is not None:
        for number, arn in enumerate(pipeline.extra_policies):
            yield _Question(f"pipeline.extra_policies.{number}", "iam", here, _seen("get_policy", PolicyArn=arn))
        if pipeline.oidc_provider_arn is not None:
            there = _seen("get_open_id_connect_provider", OpenIDConnectProviderArn=pipeline.oidc_provider_arn)
            yield _Question("pipeline.oidc_provider_arn", "iam", here, there)


def _emr(environment: Environment) -> Iterator[_Question]:
    here, emr = environment.region, environment.emr
    if emr is not None:
        yield _Question("emr.release_label", "emr", here, _release_is_known(emr.release_label))
        if emr.serverless is not None and emr.serverless.subnets:
            subnets = _seen("describe_subnets", SubnetIds=emr.serverless.subnets)
            yield _Question("emr.serverless.subnets", "ec2", here, subnets)
            groups = _seen("describe_security_groups", GroupIds=emr.serverless.security_groups)
            yield _Question("emr.serverless.security_groups", "ec2", here, groups)
    for key, application in environment.applications.items():
        access = application.access
        if isinstance(access, EmrServerless) and access.application_id is not None:
            there = _application_runs(access.application_id, emr.architecture if emr else None)
            yield _Question(f"applications.{key}.access.application_id", "emr-serverless", here, there)
    for number, job in enumerate(environment.jobs):
        kind, _, identifier = (job.target or "").partition(":")
        if kind == "cluster":
            there = _seen("describe_cluster", ClusterId=identifier)
            yield _Question(f"jobs.{number}.target", "emr", here, there)
        elif kind == "eks":
            there = _seen("describe_virtual_cluster", id=identifier)
            yield _Question(f"jobs.{number}.target", "emr-containers", here, there)


def _seen(operation: str, **arguments: Any) -> Callable[[Any], str | None]:
    """Return a check that a resource exists: `operation`, which describes the resource, fails if it does not."""

    def ask(client: Any) -> None:
        getattr(client, operation)(**arguments)

    return ask


def _bucket_is_in(bucket: str, region: str | None) -> Callable[[Any], str | None]:
    def ask(s3: Any) -> str | None:
        try:
            headers = s3.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
        except ClientError as error:
            # A HEAD response has no body, so the error code is the HTTP status.
            if error.response["Error"]["Code"] in ("404", "NoSuchBucket"):
                return f"there is no bucket {bucket}"
            headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
            if error.response["Error"]["Code"] not in ("301", "PermanentRedirect"):
                raise
        there = headers.get("x-amz-bucket-region")
        if region is not None and there is not None and there != region:
            return f"bucket {bucket} is in {there}, not in {region}"
        return None

    return ask


def _key_is_enabled(arn: str) -> Callable[[Any], str | None]:
    def ask(kms: Any) -> str | None:
        found = kms.describe_key(KeyId=arn)["KeyMetadata"]
        if found["KeyState"] != "Enabled":
            return f"key {arn} is {found['KeyState']}: enable it, or name another one"
        return None

    return ask


def _stream_is_active(stream: AdoptedStream) -> Callable[[Any], str | None]:
    def ask(kinesis: Any) -> str | None:
        found = kinesis.describe_stream_summary(StreamARN=stream.existing_arn)["StreamDescriptionSummary"]
        if found["StreamStatus"] not in ("ACTIVE", "UPDATING"):
            return f"stream {stream.existing_arn} is {found['StreamStatus']}"
        encrypted = found.get("KeyId") if found.get("EncryptionType") == "KMS" else None
        if encrypted and encrypted.startswith("arn:") and encrypted != stream.key:
            return f"it is encrypted with {encrypted}: name that as its key, and a former one under former_keys, or no reader may decrypt"
        return None

    return ask


def _declared_consumers(environment: Environment, key: str) -> frozenset[str]:
    """Return the names of the consumers that an environment declares on a stream."""
    stream, names = environment.streams[key], Names(environment)
    given = stream.consumers if isinstance(stream, AdoptedStream) else {}
    return frozenset(
        names.consumer_name(key, each)
        for each, application in environment.applications.items()
        if application.subscribes and key in application.streams and each not in given
    )


def _has_room(arn: str, declared: frozenset[str], *, advantage: bool) -> Callable[[Any], str | None]:
    """Return a check that a stream's quota covers declared and existing consumers, and Kinesis queues, which count as consumers."""

    def ask(kinesis: Any) -> str | None:
        try:
            stream = kinesis.describe_stream_summary(StreamARN=arn)["StreamDescriptionSummary"]
        except kinesis.exceptions.ResourceNotFoundException:
            return None  # reported by the check of the stream
        pages = kinesis.get_paginator("list_stream_consumers").paginate(StreamARN=arn)
        there = {each["ConsumerName"] for page in pages for each in page["Consumers"]}
        on_demand = stream.get("StreamModeDetails", {}).get("StreamMode") == "ON_DEMAND"
        count, queues = len(there | declared), stream.get("QueueCount", 0)
        most = consumers_at_most(advantage=advantage and on_demand)
        if count + queues > most:
            return (
                f"stream {arn} has {len(there)} consumers and {queues} queues, which count as consumers; with the {len(declared - there)} that "
                f"this file adds there are {count + queues}, and AWS allows {most}: deregister one, let an application poll, or raise the quota"
            )
        if on_demand and "QueueCount" not in stream and count + MANY_QUEUES > most:
            raise _NotKnown(
                f"{count} of {most} consumers; a queue counts as one, and this version of boto3 does not show queues"
            )
        return None

    return ask


def _consumer_is_active(arn: str) -> Callable[[Any], str | None]:
    def ask(kinesis: Any) -> str | None:
        status = kinesis.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"]
        return None if status == "ACTIVE" else f"consumer {arn} is {status}"

    return ask


def _release_is_known(label: str) -> Callable[[Any], str | None]:
    def ask(emr: Any) -> str | None:
        known: list[str] = []
        page = emr.list_release_labels(Filters={"Prefix": _SPARK})
        known += page.get("ReleaseLabels", [])
        while token := page.get("NextToken"):
            page = emr.list_release_labels(Filters={"Prefix": _SPARK}, NextToken=token)
            known += page.get("ReleaseLabels", [])
        if label in known:
            return None
        with_spark = ", ".join(each for each in known if each.startswith(_SPARK))
        return f"AWS has no release {label} in this region; it has {with_spark or 'none with Spark 4'}"

    return ask


def _application_runs(identifier: str, architecture: str | None) -> Callable[[Any], str | None]:
    def ask(emr: Any) -> str | None:
        found = emr.get_application(applicationId=identifier)["application"]
        if found["state"] == "TERMINATED":
            return f"application {identifier} is TERMINATED"
        there = found.get("architecture", "X86_64").lower()
        if architecture is not None and there != architecture:
            return f"application {identifier} has {there} processors, and jobs are packed for {architecture}"
        return None

    return ask
