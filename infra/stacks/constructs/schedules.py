"""Resources for the schedules of jobs: a schedule group, and the role with which EventBridge Scheduler starts the jobs.

The schedules themselves are created when a job is submitted (`kinesis_efo_tools.emr.schedules`), because they contain the archive's URI.
"""

from __future__ import annotations

from infra.settings.model import Environment
from infra.settings.names import SCHEDULES, Names
from infra.stacks.cdk import Construct, IamPolicy, IamRole, IamRolePolicyAttachment, SchedulerScheduleGroup
from infra.stacks.permissions.scheduling import start_jobs, trust_scheduler
from kinesis_efo_infra.base import policy_document, put


class Schedules(Construct):
    """An environment's schedule group, and the role of its schedules. Deleting the group deletes the schedules.

    Args:
        scope: The parent construct.
        environment: The environment, which has jobs with schedules.
        application_arn: ARN of the environment's EMR Serverless application, if it has one.
        boundary_arn: ARN of the role's permissions boundary.
    """

    def __init__(
        self, scope: Construct, environment: Environment, *, application_arn: str | None, boundary_arn: str
    ) -> None:
        names = Names(environment)
        super().__init__(scope, "schedules")
        place = SCHEDULES
        self._group = put(SchedulerScheduleGroup(self, "group", name=names.schedule_group), place)
        trusted = policy_document(self, "trust", [trust_scheduler(environment)], name=f"{place.now}_trust")
        name = names.schedules_role_name
        role = IamRole(
            self,
            "role",
            name=name,
            description=f"Starts scheduled jobs of {environment.environment}",
            assume_role_policy=trusted.json,
            permissions_boundary=boundary_arn,
        )
        self._role = put(role, place)
        allowed = policy_document(self, "document", start_jobs(environment, application_arn), name=place.now)
        policy = IamPolicy(
            self,
            "policy",
            name=name,
            description=f"Start scheduled jobs of {environment.environment}",
            policy=allowed.json,
        )
        put(policy, place)
        put(IamRolePolicyAttachment(self, "attach", role=self._role.name, policy_arn=policy.arn), place)

    @property
    def group(self) -> str:
        """Name of the schedule group."""
        return str(self._group.name)

    @property
    def role_arn(self) -> str:
        """ARN of the role with which schedules start jobs."""
        return str(self._role.arn)
