"""An account in local AWS, before and after a deployment: what the stacks only refer to is made first, and what is there is listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.exceptions import ClientError

from infra.settings import pods
from infra.settings.access import RoleAccess
from infra.settings.model import AdoptedStream, Environment, OwnStream, Stream
from infra.settings.names import Names
from kinesis_efo_infra.table import LEASE_KEY


class LocalAccount:
    """The account of an environment, in local AWS.

    Args:
        environment: The environment.
        endpoint: URL of a local AWS with the environment's account id.
    """

    def __init__(self, environment: Environment, endpoint: str) -> None:
        self._environment, self._endpoint = environment, endpoint
        self._session = boto3.session.Session(
            aws_access_key_id="local", aws_secret_access_key="local", region_name=environment.region
        )

    def client(self, service: str, region: str | None = None) -> Any:
        """A client of the account."""
        return self._session.client(service, region_name=region, endpoint_url=self._endpoint)

    def prepare(self) -> Environment:
        """Make what is to exist before. Returns the environment as far as local AWS can have it, with what exists in its place."""
        environment = self._environment
        for key, stream in environment.streams.items():
            ours = isinstance(stream, AdoptedStream) and Names(environment).is_ours(key)
            if ours or (isinstance(stream, OwnStream) and stream.import_existing):
                self._new_stream(Names(environment).stream_name(key), stream)
        for key, application in environment.applications.items():
            if application.import_lease_table:
                self._lease_table(Names(environment).lease_table_name(key))
        for arn in self._given_policies():
            self._policy(arn)
        if (bucket := environment.manifest_bucket) is not None:
            # S3 refuses us-east-1 as a constraint: that is where a bucket is without one.
            elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": environment.region}}
            with _already_there():
                self.client("s3").create_bucket(
                    Bucket=bucket, **(elsewhere if environment.region != "us-east-1" else {})
                )
        return pods.without_associations(self._with_consumers(self._with_subnets()))

    def holds(self) -> set[str]:
        """Everything that a deployment may have left, each with its kind."""
        return set(self._listed())

    def retention_hours(self, stream: str) -> int:
        """For how long a stream keeps its records."""
        return int(self._stream(stream)["RetentionPeriodHours"])

    def consumers(self, stream: str) -> set[str]:
        """Names of the consumers of a stream."""
        arn = self._stream(stream)["StreamARN"]
        return {
            each["ConsumerName"] for each in self.client("kinesis").list_stream_consumers(StreamARN=arn)["Consumers"]
        }

    def _stream(self, name: str) -> dict[str, Any]:
        answer = self.client("kinesis").describe_stream_summary(StreamName=name)
        found: dict[str, Any] = answer["StreamDescriptionSummary"]
        return found

    def _given_policies(self) -> set[str]:
        environment = self._environment
        accesses = [application.access for application in environment.applications.values()]
        given = {arn for access in accesses if isinstance(access, RoleAccess) for arn in access.policies}
        if environment.pipeline is not None:
            given |= set(environment.pipeline.extra_policies)
        # Those of AWS itself are there.
        return {arn for arn in given if _account(arn) == environment.account_id}

    def _policy(self, arn: str) -> None:
        path, _, name = arn.partition(":policy")[2].rpartition("/")
        document = '{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"*","Resource":"*"}]}'
        with _already_there():
            self.client("iam").create_policy(PolicyName=name, Path=f"{path}/", PolicyDocument=document)

    def _lease_table(self, name: str) -> None:
        with _already_there():
            self.client("dynamodb").create_table(
                TableName=name,
                KeySchema=[{"AttributeName": LEASE_KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": LEASE_KEY, "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )

    def _new_stream(self, name: str, stream: Stream) -> None:
        on_demand = isinstance(stream, OwnStream) and stream.mode == "on-demand"
        shards = (isinstance(stream, OwnStream) and stream.shards) or 1
        capacity = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}} if on_demand else {"ShardCount": shards}
        with _already_there():
            self.client("kinesis").create_stream(StreamName=name, **capacity)

    def _with_consumers(self, environment: Environment) -> Environment:
        # An ARN holds the time of creation, which is AWS' to give.
        streams = {
            key: stream.model_copy(
                update={
                    "import_consumers": {
                        application: self._new_consumer(Names(environment).stream_name(key), arn)
                        for application, arn in stream.import_consumers.items()
                    }
                }
            )
            for key, stream in environment.streams.items()
        }
        return environment.model_copy(update={"streams": streams})

    def _new_consumer(self, stream: str, arn: str) -> str:
        kinesis, stream_arn = self.client("kinesis"), self._stream(stream)["StreamARN"]
        name = arn.rpartition("/")[2].partition(":")[0]
        with _already_there():
            kinesis.register_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
        answer = kinesis.describe_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
        return str(answer["ConsumerDescription"]["ConsumerARN"])

    def _with_subnets(self) -> Environment:
        emr = self._environment.emr
        if emr is None or emr.serverless is None or not emr.serverless.subnets:
            return self._environment
        # Ids of subnets are AWS' to give; local AWS has a VPC with some.
        there = self.client("ec2").describe_subnets()["Subnets"]
        subnets = [each["SubnetId"] for each in there[: len(emr.serverless.subnets)]]
        serverless = emr.serverless.model_copy(update={"subnets": subnets})
        return self._environment.model_copy(update={"emr": emr.model_copy(update={"serverless": serverless})})

    def _listed(self) -> Iterator[str]:
        for service, operation, field, attribute in (
            ("kinesis", "list_streams", "StreamNames", None),
            ("dynamodb", "list_tables", "TableNames", None),
            ("ssm", "describe_parameters", "Parameters", "Name"),
            ("iam", "list_roles", "Roles", "Arn"),
            ("iam", "list_instance_profiles", "InstanceProfiles", "Arn"),
            ("iam", "list_open_id_connect_providers", "OpenIDConnectProviderList", "Arn"),
            ("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
            ("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
            ("ec2", "describe_security_groups", "SecurityGroups", "GroupId"),
        ):
            yield from self._each(service, operation, field, attribute)
        yield from self._each("iam", "list_policies", "Policies", "Arn", Scope="Local")
        yield from self._each("s3", "list_buckets", "Buckets", "Name")
        # There is one called `default` in every account.
        groups = {"NamePrefix": f"{self._environment.project}-"}
        yield from self._each("scheduler", "list_schedule_groups", "ScheduleGroups", "Name", **groups)
        ours = f"alias/{self._environment.project}/"
        yield from (each for each in self._each("kms", "list_aliases", "Aliases", "AliasName") if ours in each)
        states = ["CREATING", "CREATED", "STARTING", "STARTED", "STOPPING", "STOPPED"]
        yield from self._each("emr-serverless", "list_applications", "applications", "name", states=states)

    def _each(self, service: str, operation: str, field: str, attribute: str | None, **options: Any) -> Iterator[str]:
        client = self.client(service)
        pages = (
            client.get_paginator(operation).paginate(**options)
            if client.can_paginate(operation)
            else [getattr(client, operation)(**options)]
        )
        for page in pages:
            for each in page.get(field, []):
                yield f"{service} {each if attribute is None else each[attribute]}"


def _account(arn: str) -> str:
    return arn.split(":")[4]


@contextmanager
def _already_there() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        if error.response["Error"]["Code"] not in (
            "ResourceInUseException",
            "EntityAlreadyExists",
            "BucketAlreadyOwnedByYou",
        ):
            raise
