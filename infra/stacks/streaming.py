"""The stack of an environment: its streams, its applications, and their alarms and dashboard."""

from __future__ import annotations

from infra.settings import addresses, schedules
from infra.settings.access import OtherAccount
from infra.settings.artifacts import use_locations
from infra.settings.extra import Parts
from infra.settings.model import Environment
from infra.settings.names import ENVIRONMENT_KEY, Names, application_name, entry_place
from infra.stacks.base import deploy_to_aws
from infra.stacks.cdk import App, TerraformOutput, TerraformStack
from infra.stacks.constructs import (
    Alarms,
    Dashboard,
    FanOutStream,
    Jobs,
    RolesBoundary,
    Schedules,
    batch_access,
    reader_access,
)
from kinesis_efo_infra.base import pin_account
from kinesis_efo_infra.grants import policy_for
from kinesis_efo_infra.key import CustomerKey
from kinesis_efo_infra.manifest import Manifest
from kinesis_efo_infra.table import LeaseTable


class StreamingStack(TerraformStack):
    """All resources that one environment file declares.

    Args:
        scope: The app.
        environment: The environment.
    """

    def __init__(self, scope: App, environment: Environment) -> None:
        names = Names(environment)
        super().__init__(scope, names.stack_name)
        pin_account(self, environment.account_id, environment.region)
        self._environment = environment
        deploy_to_aws(self, environment, names.state_key)
        key_arn = environment.key
        if key_arn == "own":
            key_arn = CustomerKey(
                self,
                "key",
                alias=names.path,
                description=f"Lease tables and manifests of kinesis-efo in {names.qualified}",
                protected=environment.protected,
                place=ENVIRONMENT_KEY,
            ).arn
        self._key_arn = key_arn
        self._streams = {key: FanOutStream(self, environment, key) for key in environment.streams}
        self._alarms = Alarms(self, environment)
        for key, stream in self._streams.items():
            self._alarms.watch_stream(key, stream)
        self._boundary = RolesBoundary(self, environment)
        self._jobs = Jobs(self, environment, key_arn) if environment.emr else None
        if self._jobs and self._jobs.application_id:
            self._alarms.watch_jobs(self._jobs.application_id)
        self._schedules = self._scheduled()
        self._manifests: dict[str, str] = {}
        self._policies: dict[str, str] = {}
        self._batch_policies: dict[str, str] = {}
        self._roles: dict[str, str] = {}
        for key, application in environment.applications.items():
            if not isinstance(application.access, OtherAccount):
                self._application(key, key_arn)
        if environment.alarms.dashboard:
            Dashboard(self, environment, self._streams, self._alarms)
        self._outputs()
        self._forget()

    @property
    def parts(self) -> Parts:
        """Parts of the stack, to which the resources in `extra.py` may refer."""
        return Parts(self._streams, self._policies, self._roles, self._key_arn)

    def _forget(self) -> None:
        """Add `removed` blocks for streams in `handed_over` and `retain`. CDKTF has no class for these blocks."""
        forgotten = [
            {"from": each, "lifecycle": {"destroy": False}} for each in addresses.handed_over(self._environment)
        ]
        if forgotten:
            self.add_override("removed", forgotten)

    def _application(self, key: str, key_arn: str) -> None:
        environment = self._environment
        application = environment.applications[key]
        consumed = {each: self._streams[each] for each in application.streams}
        place = entry_place(key, application)
        table = LeaseTable(
            self,
            f"leases-{key}",
            name=Names(environment).lease_table_name(key),
            encryption_key=key_arn,
            protected=environment.protected and not application.retired,
            import_existing=application.import_lease_table,
            place=place,
        )
        manifest = Manifest(
            self,
            f"manifest-{key}",
            application=application_name(key, application),
            environment=Names(environment).qualified,
            name=Names(environment).parameter_name(key),
            table=table,
            streams={each: stream.read_by(key) for each, stream in consumed.items()},
            bucket=self._manifest_bucket(),
            encryption_key=key_arn,
            tier=environment.manifest_tier,
            place=place,
        )
        self._alarms.watch_table(key, table)
        policy = policy_for(self)
        for stream in consumed.values():
            stream.grant_read(policy, key)
        for each in application.writes:
            self._streams[each].grant_write(policy)
        table.grant_read_write(policy)
        manifest.grant_read(policy)
        if self._jobs:
            self._jobs.grant_run(policy, key)
        use_locations(policy, environment, key)
        serverless = self._jobs.application_arn if self._jobs else None
        access = reader_access(
            self, environment, key, policy, serverless_arn=serverless, boundary_arn=self._boundary.arn
        )
        if self._jobs:
            self._jobs.describe(key, access, self._schedules)
        self._manifests[key] = manifest.declared_location
        self._policies[key] = access.policy_arn
        if application.batch:
            batch = policy_for(self)
            for stream in consumed.values():
                stream.grant_batch(batch)
            manifest.grant_read(batch)
            self._batch_policies[key] = batch_access(self, environment, key, batch).policy_arn
        if access.role_arn:
            self._roles[key] = access.role_arn

    def _scheduled(self) -> Schedules | None:
        if self._jobs is None or not schedules.scheduled(self._environment):
            return None
        declared = Schedules(
            self,
            self._environment,
            application_arn=self._jobs.application_arn,
            boundary_arn=self._boundary.arn,
        )
        self._alarms.watch_schedules(declared.group)
        return declared

    def _manifest_bucket(self) -> str | None:
        bucket = Names(self._environment).manifest_bucket
        # Use a reference if the bucket is declared here, so that Terraform creates it before the manifests.
        return self._jobs.bucket if self._jobs and bucket == Names(self._environment).artifacts_bucket else bucket

    def _outputs(self) -> None:
        consumers = {
            f"{key}/{name}": consumer.arn
            for key, stream in self._streams.items()
            for name, consumer in stream.consumers.items()
        }
        batch = {"batch_policy_arns": self._batch_policies} if self._batch_policies else {}
        for name, value in {
            "stream_arns": {key: stream.arn for key, stream in self._streams.items()},
            "consumer_arns": consumers,
            "manifests": self._manifests,
            "policy_arns": self._policies,
            **batch,
            "role_arns": self._roles,
        }.items():
            TerraformOutput(self, name, value=value)
        if self._jobs:
            TerraformOutput(self, "artifacts_bucket", value=self._jobs.bucket)
            if self._jobs.application_id:
                TerraformOutput(self, "emr_serverless_application", value=self._jobs.application_id)
