"""Permissions for schedules of jobs: those of the pipeline's roles, and those of the role that EventBridge Scheduler assumes.

Sources: Service Authorization Reference, Amazon EventBridge Scheduler; EventBridge Scheduler user guide, "Preventing confused deputy".
"""

from __future__ import annotations

from infra.settings import schedules
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.permissions.scope import Scope, tagged, tags_new
from kinesis_efo_infra.iam import Condition, Statement

_SCHEDULER = "scheduler.amazonaws.com"
_PASS_TO_JOBS = (Condition("StringEquals", "iam:PassedToService", ("emr-serverless.amazonaws.com",)),)


def see_schedules(environment: Environment) -> list[Statement]:
    """Allow the plan role to read the schedule group. It does not read schedules, because Terraform does not manage them."""
    group = (Names(environment).schedule_group_arn,)
    return [Statement("ReadScheduleGroup", ("scheduler:GetScheduleGroup", "scheduler:ListTagsForResource"), group)]


def set_schedules(environment: Environment) -> list[Statement]:
    """Allow the apply role to declare the schedule group, and to create, change and delete schedules in it."""
    names = Names(environment)
    actions = ("CreateScheduleGroup", "DeleteScheduleGroup", "TagResource", "UntagResource")
    role = names.iam_arn(f"role/{names.schedules_role_name}")
    return [
        Statement(
            "WriteScheduleGroup",
            tuple(f"scheduler:{each}" for each in actions),
            (names.schedule_group_arn,),
        ),
        Statement(
            "SetSchedules",
            tuple(f"scheduler:{each}Schedule" for each in ("Create", "Delete", "Get", "Update")),
            (names.schedules_arn,),
        ),
        Statement(
            "PassRoleToSchedules",
            ("iam:PassRole",),
            (role,),
            conditions=(Condition("StringEquals", "iam:PassedToService", (_SCHEDULER,)),),
        ),
    ]


def trust_scheduler(environment: Environment) -> Statement:
    """Return the trust policy of the schedules' role, for schedules in the environment's group only."""
    return Statement(
        "Scheduler",
        ("sts:AssumeRole",),
        (),
        principals={"Service": (_SCHEDULER,)},
        conditions=(
            Condition("StringEquals", "aws:SourceAccount", (environment.account_id,)),
            Condition("StringEquals", "aws:SourceArn", (Names(environment).schedule_group_arn,)),
        ),
    )


def start_jobs(environment: Environment, application_arn: str | None) -> list[Statement]:
    """Allow the schedules' role to start runs of the scheduled jobs, with the roles of these jobs.

    Args:
        environment: The environment.
        application_arn: ARN of the environment's EMR Serverless application, if it has one.
    """
    names = Names(environment)
    jobs = schedules.scheduled(environment)
    given = {names.serverless_arn(job.target) for job in jobs if job.target}
    own = {application_arn} if application_arn and any(job.target is None for job in jobs) else set()
    applications = tuple(sorted(own | given))
    roles = {names.role_arn(job.application) for job in jobs}
    return [
        Statement("StartRuns", ("emr-serverless:StartJobRun",), applications),
        Statement(
            "TagRuns",
            ("emr-serverless:TagResource",),
            tuple(f"{each}/jobruns/*" for each in applications),
            conditions=tagged("aws:RequestTag", environment),
        ),
        Statement("PassRolesToRuns", ("iam:PassRole",), tuple(sorted(roles)), conditions=_PASS_TO_JOBS),
    ]


def start_within_boundary(environment: Environment) -> list[Statement]:
    """Return the part of the permissions boundary that allows starting jobs. Its conditions limit it to the schedules' role."""
    names = Names(environment)
    role = names.iam_arn(f"role/{names.schedules_role_name}")
    is_it = (Condition("ArnLike", "aws:PrincipalArn", (role,)),)
    given = {names.serverless_arn(job.target) for job in schedules.scheduled(environment) if job.target}
    every = names.arn("emr-serverless", "/applications/*")
    start = ("emr-serverless:StartJobRun",)
    return [
        Statement("StartRuns", start, (every,), conditions=(*is_it, *tagged("aws:ResourceTag", environment))),
        *([Statement("StartRunsElsewhere", start, tuple(sorted(given)), conditions=is_it)] if given else []),
        Statement(
            "TagRuns",
            ("emr-serverless:TagResource",),
            (f"{every}/jobruns/*",),
            conditions=(*is_it, *tags_new(environment)),
        ),
        Statement("PassRolesToRuns", ("iam:PassRole",), Scope(environment).roles, conditions=(*is_it, *_PASS_TO_JOBS)),
    ]
