"""The context of a `kinesis-efo emr` command: the application, its target, and AWS clients, which are closed with the context."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kinesis_efo.aws import AsyncClients, SyncClients
from kinesis_efo.errors import UsageError
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.leases.table import LeaseTable
from kinesis_efo.manifest import Manifest, load_manifest
from kinesis_efo.options import AwsSettings
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.arguments import MANIFEST_VARIABLE
from kinesis_efo_tools.cli.commands.emr import ApplicationOptions, TargetOptions
from kinesis_efo_tools.emr.artifacts import Store
from kinesis_efo_tools.emr.clusters import Clusters
from kinesis_efo_tools.emr.containers import Containers
from kinesis_efo_tools.emr.deployment import Deployment, load_deployment
from kinesis_efo_tools.emr.glue import GlueJobs
from kinesis_efo_tools.emr.job import job_name
from kinesis_efo_tools.emr.platform import Platform
from kinesis_efo_tools.emr.schedules import Schedule, Schedules
from kinesis_efo_tools.emr.serverless import Serverless
from kinesis_efo_tools.emr.target import TARGETS, Target, TargetKind

_PLATFORMS: Final[dict[TargetKind, tuple[str, type[Platform]]]] = {
    TargetKind.CLUSTER: ("emr", Clusters),
    TargetKind.SERVERLESS: ("emr-serverless", Serverless),
    TargetKind.EKS: ("emr-containers", Containers),
    TargetKind.GLUE: ("glue", GlueJobs),
}


def _no_target(given: ApplicationOptions, deployment: Deployment) -> str:
    if deployment.program is None:
        return f": no job of {given.application} is declared in {given.environment}"
    return f": the job of {given.application} is declared in {given.environment} without a place to run"


@dataclass(slots=True)
class Context:
    """The application that a command is for, and where its jobs run. `deployment` is None without --environment and --application."""

    aws: AwsSettings
    deployment: Deployment | None
    location: str
    manifest: Manifest
    target: Target
    _given: TargetOptions
    _stack: ExitStack
    _factory: SyncClients
    _clients: dict[str, Any] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(cls, given: TargetOptions) -> Iterator[Context]:
        """Identify the application from the options, and load its manifest.

        Raises UsageError if an option is missing or contradicts the manifest, ConfigurationError if the deployment or manifest cannot be read.
        """
        aws, deployment = given.aws, None
        if given.environment or given.application:
            with cls.deployed(given) as deployment:
                pass
        location = given.manifest or (deployment.manifest if deployment else os.environ.get(MANIFEST_VARIABLE))
        if not location:
            raise UsageError(
                "the application is missing: give --environment and --application, or --manifest with --target"
            )
        text = given.target or (deployment.target if deployment else None)
        if not text:
            raise UsageError(
                "--target is missing" + (_no_target(given, deployment) if deployment else "") + f"; give {TARGETS}"
            )
        target = Target.parse(text)
        manifest = load_manifest(location, SyncClients(aws, deployment.region if deployment else None).client)
        named = (given.environment, given.application)
        if deployment and named != (manifest.environment, manifest.application):
            raise UsageError(
                f"--environment and --application name {'/'.join(map(str, named))}, but the manifest {manifest.source} is that of "
                f"{manifest.environment}/{manifest.application}; omit --manifest, or name that application"
            )
        resolved = replace(aws, region=aws.region or manifest.region)
        with ExitStack() as stack:
            yield cls(resolved, deployment, location, manifest, target, given, stack, SyncClients(resolved))

    @classmethod
    @contextmanager
    def deployed(cls, given: ApplicationOptions) -> Iterator[Deployment]:
        """Load the deployment of the application that the options name.

        Raises UsageError if a name is missing, ConfigurationError if the application was not deployed.
        """
        if not (given.environment and given.application):
            raise UsageError("--environment and --application go together: give both")
        with closing(SyncClients(given.aws).client("ssm")) as ssm:
            yield load_deployment(given.environment, given.application, ssm)

    @property
    def name(self) -> str:
        """Name of the application's runs in EMR or Glue."""
        return job_name(self.manifest.environment, self.manifest.application)

    @property
    def platform(self) -> Platform:
        """Access to the target through the EMR or Glue API."""
        service, kind = _PLATFORMS[self.target.kind]
        return kind(self.target, self.client(service))

    @property
    def schedule(self) -> Schedule | None:
        """The declared schedule of the application's job; None if there is none.

        Raises UsageError if the deployment lacks the schedule's group or role, or the target is not EMR Serverless.
        """
        deployed = self.deployment
        if deployed is None or deployed.schedule is None:
            return None
        if not (deployed.schedule_group and deployed.schedule_role_arn):
            raise UsageError(
                f"the job of {deployed.application} in {deployed.environment} has schedule {deployed.schedule}, but no group or role "
                "for it is described: deploy the infrastructure again"
            )
        if self.target.kind is not TargetKind.SERVERLESS:
            raise UsageError(
                f"the job of {deployed.application} in {deployed.environment} has schedule {deployed.schedule}, which is for EMR "
                f"Serverless; got --target {self.target}: use --now to run it there once"
            )
        return Schedule(
            deployed.schedule_group,
            deployed.application,
            deployed.schedule,
            deployed.time_zone,
            deployed.schedule_role_arn,
        )

    @property
    def schedules(self) -> Schedules:
        """Access to EventBridge Scheduler."""
        return Schedules(self.client("scheduler"))

    def unschedule(self) -> bool:
        """Delete the schedule of the application's job; returns whether there was one."""
        if self.deployment is None or self.deployment.schedule_group is None:
            return False
        return self.schedules.remove(self.deployment.schedule_group, self.deployment.application)

    def store(self, artifacts: str | None) -> Store:
        """Return the S3 location of archives and programs.

        `artifacts` is the location on the command line. Raises UsageError if neither the command line nor the deployment has a location.
        """
        location = artifacts or (self.deployment.artifacts if self.deployment else None)
        if not location:
            raise UsageError(
                "--artifacts is missing: give s3://bucket or s3://bucket/prefix, for archives, programs and stop markers"
            )
        return Store(self.client("s3"), location)

    def client(self, service: str) -> Any:
        """Return the client of a service, created once and closed with the context."""
        if service not in self._clients:
            self._clients[service] = self._stack.enter_context(closing(self._factory.client(service)))
        return self._clients[service]

    def mark(self, uri: str, artifacts: str | None) -> bool:
        """Write a run's stop marker, the S3 object that makes the run stop gracefully. Returns whether it was written.

        Args:
            uri: The marker's location, from the run's settings. Not written if `submission.plan` would choose another location.
            artifacts: The S3 location on the command line; None to use the deployment's.

        Raises UsageError if neither the command line nor the deployment has an S3 location.
        """
        store, key = self.store(artifacts), f"stops/{self.name}/{uri.rpartition('/')[2]}"
        if uri != store.uri(key):
            output.remark(
                f"not written: stop marker {uri}, which is not below {store.uri(f'stops/{self.name}/')}; the run is ended by force"
            )
            return False
        store.mark(key)
        return True

    @asynccontextmanager
    async def leases(self) -> AsyncIterator[LeaseStore]:
        """Open the application's lease table."""
        # Use the manifest's region: the lease table may be in a different region than EMR.
        region = self.manifest.region
        clients = AsyncClients(replace(self.aws, region=region), region)
        async with await clients.open("dynamodb") as client:
            yield LeaseTable(client, self.manifest.lease_table, declared_by=f"manifest {self.manifest.source}")

    def command(self, name: str) -> str:
        """Return the command line of another command for the same application."""
        if self.deployment:
            return f"kinesis-efo emr {name} -e {self._given.environment} -a {self._given.application}"
        return f"kinesis-efo emr {name} --target {self.target} --manifest {self.location}"
