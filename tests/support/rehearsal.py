"""Rehearses a deployment: Terraform applies the stacks of an environment to a local AWS, plans again, changes and destroys them.

`make rehearsal ENV=dev` runs it with the AWS provider of its registry, on GitHub with each engine.

What is applied is what would be deployed: what the stacks only refer to is made first. Afterwards nothing may be left.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import boto3
from botocore.exceptions import ClientError

from infra.errors import PipelineError
from infra.local.up import serving
from infra.settings import ledger, pods
from infra.settings.access import OtherAccount, RoleAccess
from infra.settings.load import load_environments
from infra.settings.model import AdoptedStream, Environment, OwnStream, Stream
from infra.settings.names import Names, application_name
from infra.stacks.app import synthesize, synthesize_bootstrap
from kinesis_efo_infra.pipeline.bundle import Changes
from kinesis_efo_infra.pipeline.local import CONFIGURATION, LocalStack
from kinesis_efo_infra.table import LEASE_KEY
from tests.support.moto_gaps import filled

logger = logging.getLogger(__name__)
ADDED = "rehearsal"
"""Key of the stream that the change adds."""


class RehearsalError(Exception):
    """A deployment to local AWS did not do what one to AWS must do."""


@contextmanager
def served(environment: Environment) -> Iterator[str]:
    """A local AWS for an environment; yields its URL."""
    with filled(environment.account_id, environment.region), serving(environment) as aws:
        yield aws.endpoint_url


def rehearse(directory: Path, name: str, scratch: Path) -> None:
    """Apply the stacks of an environment to local AWS, plan them again, change them, and destroy them.

    Args:
        directory: Directory of the environment files.
        name: The environment.
        scratch: An empty directory.

    Raises:
        RehearsalError: A second plan is not empty, the change replaces something, or something is left in the end.
        PipelineError: Terraform failed.
    """
    (environment,) = load_environments(directory, [name])
    plugins = scratch / "plugins"
    plugins.mkdir(parents=True)
    with served(environment) as endpoint:
        _streaming(environment, endpoint, scratch, plugins)
    if environment.pipeline is not None:
        with served(environment) as endpoint:
            _bootstrap(environment, endpoint, scratch, plugins)


def _streaming(environment: Environment, endpoint: str, scratch: Path, plugins: Path) -> None:
    """Rehearse the stack of streams and applications."""

    def written(wanted: Environment) -> None:
        # The ledger of the environment is not touched.
        ledger.accept(scratch, wanted)
        synthesize([wanted], scratch, outdir=scratch / "streaming")

    account = LocalAccount(environment, endpoint)
    present = account.prepare()
    before = account.holds()
    written(present)
    stack = Rehearsal(scratch / "streaming" / "stacks" / Names(environment).stack_name, endpoint, plugins)
    stack.begin()
    stack.apply()
    later = changed(present)
    written(later)
    changes = stack.apply()
    if changes.replace or changes.destroy:
        raise RehearsalError(f"{stack}: more retention, a stream and a consumer would {changes}; nothing may be lost")
    _check_change(later, account)
    stack.end()
    _check_left(account, before, stack)


def _bootstrap(environment: Environment, endpoint: str, scratch: Path, plugins: Path) -> None:
    """Rehearse the stack that the pipeline needs."""
    account = LocalAccount(environment, endpoint)
    account.prepare()
    before = account.holds()
    written = synthesize_bootstrap([environment], scratch / "bootstrap")
    stack = Rehearsal(written / "stacks" / Names(environment).bootstrap_stack_name, endpoint, plugins)
    stack.begin()
    stack.apply()
    stack.end()
    _check_left(account, before, stack)


def changed(environment: Environment) -> Environment:
    """The environment with more retention, and with one more stream, which an application reads."""
    streams = {
        key: stream.model_copy(update={"retention_hours": min(stream.retention_hours + 24, 8760)})
        if isinstance(stream, OwnStream)
        else stream
        for key, stream in environment.streams.items()
    }
    streams[ADDED] = OwnStream(mode="provisioned", shards=1)
    applications = dict(environment.applications)
    reader = next((key for key, each in applications.items() if not isinstance(each.access, OtherAccount)), None)
    if reader is not None:
        application = applications[reader]
        applications[reader] = application.model_copy(update={"streams": [*application.streams, ADDED]})
    return environment.model_copy(update={"streams": streams, "applications": applications})


def _check_change(environment: Environment, account: LocalAccount) -> None:
    for key, stream in environment.streams.items():
        name = Names(environment).stream_name(key)
        if not isinstance(stream, OwnStream):
            continue
        if (found := account.retention_hours(name)) != stream.retention_hours:
            raise RehearsalError(f"stream {name} keeps its records for {found} h, not for {stream.retention_hours} h")
        wanted = {
            application_name(application, each)
            for application, each in environment.applications.items()
            if key in each.streams and each.subscribes
        }
        if wanted != account.consumers(name):
            raise RehearsalError(
                f"stream {name} has the consumers {sorted(account.consumers(name))}, not {sorted(wanted)}"
            )


def _check_left(account: LocalAccount, before: set[str], stack: LocalStack) -> None:
    if left := account.holds() - before:
        raise RehearsalError(f"{stack}: left in local AWS after its destruction: {', '.join(sorted(left))}")


class Rehearsal(LocalStack):
    """A stack that is applied to local AWS, and destroyed again."""

    def apply(self) -> Changes:
        """Apply; a plan after that must be empty.

        Raises:
            RehearsalError: It is not.
        """
        changes = super().apply()
        plan = self.directory / "again.tfplan"
        if self.terraform.plan(plan):
            raise RehearsalError(f"{self}: a second plan is not empty:\n{self.terraform.show_text(plan)}")
        logger.info("%s: a second plan is empty", self)
        return changes

    def end(self) -> None:
        """Destroy everything; what is protected is refused first, and set free.

        Raises:
            RehearsalError: Something that is protected would have been destroyed.
        """
        if free := self._protection():
            try:
                self.terraform.destroy()
            except PipelineError as error:
                if "prevent_destroy" not in str(error):
                    raise
            else:
                raise RehearsalError(f"{self}: what is protected was destroyed")
            self.write("unprotected_override.tf.json", {"resource": free})
            self.apply()
        self.terraform.destroy()
        logger.info("%s: destroyed", self)

    def _protection(self) -> dict[str, dict[str, Any]]:
        """What sets each protected resource free."""
        document = json.loads((self.directory / CONFIGURATION).read_text(encoding="utf-8"))
        free: dict[str, dict[str, Any]] = {}
        for kind, resources in document["resource"].items():
            for name, resource in resources.items():
                if resource.get("lifecycle", {}).get("prevent_destroy"):
                    table = {"deletion_protection_enabled": False} if kind == "aws_dynamodb_table" else {}
                    free.setdefault(kind, {})[name] = {"lifecycle": {"prevent_destroy": False}, **table}
        return free


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
                self.lease_table(Names(environment).lease_table_name(key))
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

    def lease_table(self, name: str) -> None:
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


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with TemporaryDirectory(prefix="kinesis-efo-rehearsal-") as folder:
        rehearse(Path(sys.argv[1]), sys.argv[2], Path(folder))
