"""Schedules of jobs: what a file may say, and who may set them and start what."""

from __future__ import annotations

from datetime import date

import pytest

from infra.errors import SettingsError
from infra.settings import rules, schedules
from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks import permissions
from infra.stacks.permissions.scheduling import start_jobs
from kinesis_efo_tools.emr.deployment import Deployment
from tests.unit.infra.conftest import Load, attempt, in_json, policy, rows, tags

TODAY = date(2027, 1, 31)
JOB = "JOB, applications.lake.continuous: false, jobs.0.arguments: [--available-now], jobs.0.program: jobs/archive.py"
EVERY = f"{JOB}, jobs.0.schedule: rate(15 minutes)"
ELSEWHERE = "applications.lake.access.application_id: 00def, jobs.0.target: 'serverless:00def'"
ROLE = "arn:aws:iam::111122223333:role/kinesis-efo-test-jobs@schedules"
RUNTIME = "arn:aws:iam::111122223333:role/kinesis-efo-test-lake"
APPLICATION = "arn:aws:emr-serverless:eu-west-1:111122223333:/applications/00abc"


@pytest.mark.parametrize(
    "expression",
    [
        "rate(1 minute)", "rate(15 minutes)", "rate(1 hour)", "rate(7 days)",
        "cron(0 6 * * ? *)", "cron(0/15 * * * ? *)", "cron(0 18 ? * MON-FRI *)", "cron(0 8 1 * ? *)", "cron(5,35 14 ? * 2-6 2027)",
        "cron(0 9 ? * 2#1 *)", "cron(0 9 L * ? *)", "cron(0 9 15W JAN,jul ? *)", "cron(0 9 ? * 6L 2026-2030)", "cron(*/5 0-6 ? * * *)",
    ],
)  # fmt: skip
def test_expression_of_scheduler_is_valid(expression: str) -> None:
    assert schedules.expression_fault(expression) is None


FAULTY = r"""
rate(0 minutes) => from 1
rate(1 minutes) => singular for 1, as AWS wants it: rate\(1 minute\)
rate(5 minute) => plural for more than 1, as AWS wants it: rate\(5 minutes\)
rate(5 weeks) => be rate\(<number>
rate(1.5 hours) => be rate\(<number>
15 minutes => be rate\(<number>
at(2027-01-01T00:00:00) => come again
cron(0 6 * * *) => six fields .* it has 5
cron(60 6 * * ? *) => minutes from 0 to 59; it has 60
cron(0 24 * * ? *) => hours from 0 to 23
cron(0 6 0 * ? *) => day-of-month from 1 to 31
cron(0 6 * 13 ? *) => month from 1 to 12
cron(0 6 ? * 0 *) => day-of-week from 1 to 7
cron(0 6 ? * MOO *) => day-of-week
cron(0 6 * * ? 1969) => year from 1970
cron(0 6 * * * *) => have \? in cron
cron(0 6 ? * ? *) => have \? in cron
cron(? 6 * * ? *) => minutes
cron(0/0 6 * * ? *) => minutes
cron(1-2-3 6 * * ? *) => minutes
cron(, 6 * * ? *) => minutes
cron(1- 6 * * ? *) => minutes
"""
CONTRADICTIONS = r"""
EVERY, applications.lake.continuous: true => applications\.lake\.continuous: must be false with a schedule
EVERY, applications.lake.access: EC2, jobs.0.target: 'cluster:j-1' => schedule: is for EMR Serverless only, .* `kinesis-efo emr submit`
EVERY, jobs.0.time_zone: Europe/Berlin => time_zone: must come with schedule: cron
PLAIN, jobs.0.time_zone: Europe/Berlin => time_zone: must come with schedule: cron
PLAIN, jobs.0.schedule: 'cron(0 6 * * ? *)', jobs.0.time_zone: Europe/Bonn => time_zone: must be a time zone of the IANA database
PLAIN, jobs.0.schedule: 'cron(0 6 * * ? *)', jobs.0.time_zone: ../etc/passwd => time_zone: must be a time zone
EVERY, applications.lake.name: LONG, applications.lake.access.role_name: lake => lake\.name: must have at most 64 characters with a schedule
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [(f"PLAIN, jobs.0.schedule: '{each}'", rf"jobs\.0\.schedule: must .*{message}") for each, message in rows(FAULTY)]
    + rows(CONTRADICTIONS),
)
def test_wrong_schedule_is_refused(load: Load, changes: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(changes.replace("EVERY", EVERY).replace("PLAIN", JOB).replace("LONG", "l" * 65))


def test_archive_that_never_ends_is_a_warning(load: Load) -> None:
    for arguments, count in (("[]", 1), ("[--available-now]", 0)):
        found = rules.warnings(load(f"{EVERY}, jobs.0.arguments: {arguments}"), TODAY)
        assert len([each for each in found if "--available-now" in each]) == count


def test_library_reads_the_deployed_schedule() -> None:
    assert {"schedule", "time_zone", "schedule_group", "schedule_role_arn"} <= set(Deployment.__struct_fields__)


@pytest.fixture
def environment(load: Load) -> Environment:
    return load(f"{EVERY}, PIPELINE")


def test_pipeline_sets_schedules_of_its_group_only(environment: Environment) -> None:
    contexts = {
        "scheduler": {"iam:PassedToService": "scheduler.amazonaws.com"},
        "new": {"iam:PermissionsBoundary": Names(environment).boundary_arn, **tags("Request")},
    }
    schedule = "scheduler:CreateSchedule,scheduler:UpdateSchedule,scheduler:DeleteSchedule,scheduler:GetSchedule"
    group = "scheduler:CreateScheduleGroup,scheduler:DeleteScheduleGroup,scheduler:GetScheduleGroup,scheduler:TagResource,scheduler:ListTagsForResource"
    # A job's role is not Scheduler's.
    applies = f"""
+ {schedule} schedule/kinesis-efo-test/lake
- {schedule} schedule/default/lake
+ {group} schedule-group/kinesis-efo-test
- {group} schedule-group/kinesis-efo-test-2
+ iam:PassRole {ROLE} | scheduler
- iam:PassRole {RUNTIME} | scheduler
+ iam:CreateRole {ROLE} | new
"""
    attempt(policy(environment), applies, **contexts)
    plans = """
+ scheduler:GetScheduleGroup schedule-group/kinesis-efo-test
- scheduler:UpdateSchedule schedule/kinesis-efo-test/lake
"""
    attempt(policy(environment, *permissions.PLANNING), plans)


def test_schedules_role_works_within_the_boundary(environment: Environment) -> None:
    contexts = {
        "ours": tags("Resource"),
        "new": tags("Request"),
        "prod": {"aws:ResourceTag/environment": "prod"},
        "job": {"iam:PassedToService": "emr-serverless.amazonaws.com"},
        "ec2": {"iam:PassedToService": "ec2.amazonaws.com"},
        "schedules": {"aws:PrincipalArn": ROLE},
        "runtime": {"aws:PrincipalArn": RUNTIME},
    }
    work = """
+ emr-serverless:StartJobRun APPLICATION | ours + schedules
+ emr-serverless:TagResource APPLICATION/jobruns/00r1 | new + schedules
+ iam:PassRole RUNTIME | job + schedules
""".replace("APPLICATION", APPLICATION).replace("RUNTIME", RUNTIME)
    own = in_json(start_jobs(environment, APPLICATION))
    attempt(own, f"{work}- emr-serverless:StartJobRun {APPLICATION}2 | schedules", **contexts)
    refused = f"""
- emr-serverless:StartJobRun {APPLICATION} | schedules + prod
- iam:PassRole {RUNTIME} | schedules + ec2
- iam:PassRole role/admin | schedules + job
"""
    others = work.replace("+ schedules", "+ runtime").replace("\n+", "\n-")
    attempt(policy(environment, "boundary"), work + refused + others, **contexts)


def test_named_application_is_within_the_boundary(load: Load) -> None:
    within = policy(load(f"{EVERY}, {ELSEWHERE}, PIPELINE"), "boundary")
    table = (
        "+ emr-serverless:StartJobRun /applications/00def | by\n- emr-serverless:StartJobRun /applications/00def0 | by"
    )
    attempt(within, table, by={"aws:PrincipalArn": ROLE})
