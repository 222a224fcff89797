"""Resources for jobs: the artifacts bucket, an EMR Serverless application, and the description of each application's jobs."""

from __future__ import annotations

from typing import Any

from infra.settings import manifest
from infra.settings.access import EmrServerless
from infra.settings.artifacts import use_artifacts
from infra.settings.model import Environment, ServerlessApplication
from infra.settings.names import (
    ARTIFACTS,
    ENVIRONMENTS,
    JOBS,
    LOGS,
    PROGRAMS,
    STOPS,
    WORKERS,
    Names,
    application_name,
    entry_place,
)
from infra.stacks.cdk import (
    Construct,
    DataAwsSubnet,
    EmrserverlessApplication,
    EmrserverlessApplicationAutoStartConfiguration,
    EmrserverlessApplicationAutoStopConfiguration,
    EmrserverlessApplicationMaximumCapacity,
    EmrserverlessApplicationNetworkConfiguration,
    Fn,
    SecurityGroup,
    SecurityGroupEgress,
    SecurityGroupIngress,
    SsmParameter,
)
from infra.stacks.constructs.bucket import PrivateBucket
from infra.stacks.constructs.schedules import Schedules
from kinesis_efo_infra.access import ReaderAccess
from kinesis_efo_infra.base import keep, put
from kinesis_efo_infra.iam import Policy

_STOPS_DAYS = 7
_NONCURRENT_DAYS = 7


class Jobs(Construct):
    """The resources that the jobs of an environment share, and the descriptions from which `kinesis-efo emr submit` submits them.

    Args:
        scope: The parent construct.
        environment: The environment, which must have `emr` settings.
        key_arn: ARN of the customer key that encrypts bucket and descriptions.
    """

    def __init__(self, scope: Construct, environment: Environment, key_arn: str) -> None:
        super().__init__(scope, "jobs")
        assert environment.emr is not None
        self._environment, self._settings, self._key_arn = environment, environment.emr, key_arn
        self._bucket = PrivateBucket(
            self,
            name=Names(environment).artifacts_bucket,
            key_arn=key_arn,
            # Archives and programs can expire: each deployment uploads them again. Until they expire, runs that use them can be restarted.
            expire_days={
                LOGS: self._settings.log_days,
                STOPS: _STOPS_DAYS,
                **dict.fromkeys((ENVIRONMENTS, PROGRAMS), self._settings.artifact_days),
            },
            noncurrent_days=_NONCURRENT_DAYS,
            protected=environment.protected,
            place=ARTIFACTS,
        )
        self._serverless = self._application(self._settings.serverless) if self._settings.serverless else None

    @property
    def application_arn(self) -> str | None:
        """ARN of the EMR Serverless application; None if none is declared."""
        return self._serverless.arn if self._serverless else None

    @property
    def application_id(self) -> str | None:
        """Id of the EMR Serverless application; None if none is declared."""
        return self._serverless.id if self._serverless else None

    @property
    def bucket(self) -> str:
        """Name of the artifacts bucket."""
        return self._bucket.name

    def grant_run(self, policy: Policy, application: str) -> None:
        """Allow an application's jobs to load their program, check for the marker object that stops them, and write logs."""
        name = application_name(application, self._environment.applications[application])
        use_artifacts(policy, self._bucket.arn, Names(self._environment).prefix, name, self._key_arn)

    def describe(self, application: str, access: ReaderAccess, schedules: Schedules | None) -> None:
        """Declare the parameter from which `kinesis-efo emr submit` reads how to submit an application's jobs.

        Args:
            application: Key of the application.
            access: The application's policy and role.
            schedules: The environment's schedule group and role, if any job has a schedule.
        """
        environment = self._environment
        settings = environment.applications[application]
        job = environment.job(application)
        target = job.target if job else None
        if target is None and isinstance(settings.access, EmrServerless) and not settings.access.application_id:
            target = f"serverless:{self._serverless.id}" if self._serverless else None
        document = manifest.deployment(
            environment,
            application,
            bucket=self._bucket.name,
            key_arn=self._key_arn,
            target=target,
            role_arn=manifest.runtime_role(settings.access, access.role_arn),
            schedules=manifest.Scheduling(schedules.group, schedules.role_arn) if schedules else None,
        )
        name = Names(environment).deployment_parameter_name(application)
        parameter = SsmParameter(
            self,
            f"parameter-{application}",
            name=name,
            description=f"How {name.rpartition('/')[0].rpartition('/')[2]} is run",
            type="SecureString",
            key_id=self._key_arn,
            tier=environment.manifest_tier.capitalize(),
            value=Fn.jsonencode(document),
        )
        put(parameter, entry_place(application, settings).join("job"))

    def _application(self, settings: ServerlessApplication) -> EmrserverlessApplication:
        network = None
        if settings.subnets:
            workers = WorkersGroup(self, self._environment, settings.subnets[0])
            network = EmrserverlessApplicationNetworkConfiguration(
                subnet_ids=settings.subnets, security_group_ids=[*settings.security_groups, workers.id]
            )
        application = EmrserverlessApplication(
            self,
            "application",
            name=Names(self._environment).stack_name,
            type="spark",
            release_label=self._settings.release_label,
            architecture=self._settings.architecture.upper(),
            maximum_capacity=EmrserverlessApplicationMaximumCapacity(
                cpu=f"{settings.maximum_vcpu} vCPU", memory=f"{settings.maximum_memory_gb} GB"
            ),
            auto_start_configuration=EmrserverlessApplicationAutoStartConfiguration(enabled=True),
            auto_stop_configuration=EmrserverlessApplicationAutoStopConfiguration(
                enabled=True, idle_timeout_minutes=15
            ),
            network_configuration=network,
            lifecycle=keep(self._environment.protected),
        )
        return put(application, JOBS)


class WorkersGroup(Construct):
    """A security group for EMR Serverless workers, which allows TCP connections between its members.

    Executors connect to the driver, and to the fetcher beside it. This group is added to the security groups in the settings, so
    that those need not allow connections between workers: they may be shared with other resources.

    Args:
        scope: The parent construct.
        environment: The environment.
        subnet: A subnet of the workers; the group is in its VPC.
    """

    def __init__(self, scope: Construct, environment: Environment, subnet: str) -> None:
        super().__init__(scope, "workers")
        place = DataAwsSubnet(self, "subnet", id=subnet)
        place.override_logical_id(WORKERS.now)
        # Allow all ports, because Spark and the fetcher use any free ones. Terraform JSON requires even the empty attributes of a rule.
        others = ("cidr_blocks", "ipv6_cidr_blocks", "prefix_list_ids", "security_groups")
        among: dict[str, Any] = {"from_port": 0, "to_port": 65_535, "protocol": "tcp", "self_attribute": True}
        among |= {name: [] for name in others}
        group = SecurityGroup(
            self,
            "group",
            name=f"{Names(environment).stack_name}-workers",
            description="Workers of EMR Serverless reach each other",
            vpc_id=place.vpc_id,
            ingress=[SecurityGroupIngress(description="from driver and executors", **among)],
            egress=[SecurityGroupEgress(description="to driver and executors", **among)],
        )
        self._id = put(group, WORKERS).id

    @property
    def id(self) -> str:
        """Id of the security group."""
        return self._id
