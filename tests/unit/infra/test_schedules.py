"""Schedules of jobs: what a file may say, what is declared for them, and who may set them and start what."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from infra.errors import SettingsError
from infra.local.up import localized
from infra.settings import rules, schedules
from infra.settings.model import Environment
from infra.stacks import permissions
from kinesis_efo_infra import iam
from kinesis_efo_tools.emr.deployment import Deployment
from tests.support.iam import Statement, allowed
from tests.unit.infra.conftest import Synth

TODAY = date(2027, 1, 31)

REGION, ACCOUNT = "eu-west-1", "111122223333"
HERE = f"{REGION}:{ACCOUNT}"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/kinesis-efo-test-jobs@schedules"
RUNTIME = f"arn:aws:iam::{ACCOUNT}:role/kinesis-efo-test-lake"
GROUP = f"arn:aws:scheduler:{HERE}:schedule-group/kinesis-efo-test"
APPLICATION = f"arn:aws:emr-serverless:{HERE}:/applications/00abc"
OURS = {"aws:ResourceTag/environment": "test", "aws:ResourceTag/managed-by": "kinesis-efo"}
NEW = {"aws:RequestTag/environment": "test", "aws:RequestTag/managed-by": "kinesis-efo"}


def declared(schedule: str | None = "rate(15 minutes)", *, continuous: bool = False, **changes: Any) -> dict[str, Any]:
    """The settings of an environment with one job."""
    job = {"application": "lake", "program": "jobs/archive.py", "arguments": ["--available-now"], **changes}
    access = job.pop("access", {"kind": "emr-serverless"})
    lake = {"streams": ["orders"], "continuous": continuous, "access": access}
    return {
        "emr": {},
        "applications": {"lake": lake},
        "jobs": [{**job, **({"schedule": schedule} if schedule else {})}],
    }


@pytest.mark.parametrize(
    "expression",
    [
        "rate(1 minute)", "rate(15 minutes)", "rate(1 hour)", "rate(7 days)",
        "cron(0 6 * * ? *)", "cron(0/15 * * * ? *)", "cron(0 18 ? * MON-FRI *)", "cron(0 8 1 * ? *)", "cron(5,35 14 ? * 2-6 2027)",
        "cron(0 9 ? * 2#1 *)", "cron(0 9 L * ? *)", "cron(0 9 15W JAN,jul ? *)", "cron(0 9 ? * 6L 2026-2030)", "cron(*/5 0-6 ? * * *)",
    ],
)  # fmt: skip
def test_what_scheduler_knows_is_an_expression(expression: str) -> None:
    assert schedules.expression_fault(expression) is None


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("rate(0 minutes)", "from 1"),
        ("rate(1 minutes)", r"singular for 1, as AWS wants it: rate\(1 minute\)"),
        ("rate(5 minute)", r"plural for more than 1, as AWS wants it: rate\(5 minutes\)"),
        ("rate(5 weeks)", r"be rate\(<number>"),
        ("rate(1.5 hours)", r"be rate\(<number>"),
        ("15 minutes", r"be rate\(<number>"),
        ("at(2027-01-01T00:00:00)", "come again"),
        ("cron(0 6 * * *)", "six fields .* it has 5"),
        ("cron(60 6 * * ? *)", "minutes from 0 to 59; it has 60"),
        ("cron(0 24 * * ? *)", "hours from 0 to 23"),
        ("cron(0 6 0 * ? *)", "day-of-month from 1 to 31"),
        ("cron(0 6 * 13 ? *)", "month from 1 to 12"),
        ("cron(0 6 ? * 0 *)", "day-of-week from 1 to 7"),
        ("cron(0 6 ? * MOO *)", "day-of-week"),
        ("cron(0 6 * * ? 1969)", "year from 1970"),
        ("cron(0 6 * * * *)", r"have \? in cron"),
        ("cron(0 6 ? * ? *)", r"have \? in cron"),
        ("cron(? 6 * * ? *)", "minutes"),
        ("cron(0/0 6 * * ? *)", "minutes"),
        ("cron(1-2-3 6 * * ? *)", "minutes"),
        ("cron(, 6 * * ? *)", "minutes"),
        ("cron(1- 6 * * ? *)", "minutes"),
    ],
)
def test_what_scheduler_would_refuse_is_refused_when_the_file_is_loaded(
    load: Callable[..., Environment], expression: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=rf"jobs\.0\.schedule: must .*{says}"):
        load(**declared(expression))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (declared(continuous=True), r"applications\.lake\.continuous: must be false with a schedule"),
        (
            declared(access={"kind": "emr-ec2"}, target="cluster:j-1"),
            "schedule: is for EMR Serverless only, .* `kinesis-efo emr submit`",
        ),
        (declared(time_zone="Europe/Berlin"), r"time_zone: must come with schedule: cron"),
        (declared(None, time_zone="Europe/Berlin"), r"time_zone: must come with schedule: cron"),
        (declared("cron(0 6 * * ? *)", time_zone="Europe/Bonn"), "time_zone: must be a time zone of the IANA database"),
        (declared("cron(0 6 * * ? *)", time_zone="../etc/passwd"), "time_zone: must be a time zone"),
    ],
)
def test_what_goes_with_no_schedule_is_a_fault(
    load: Callable[..., Environment], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        load(**settings)


def test_an_application_whose_name_no_schedule_can_have_is_a_fault(load: Callable[..., Environment]) -> None:
    settings = declared()
    settings["applications"]["lake"] |= {"name": "l" * 65, "access": {"kind": "emr-serverless", "role_name": "lake"}}
    with pytest.raises(SettingsError, match=r"lake\.name: must have at most 64 characters with a schedule"):
        load(**settings)


def test_an_archive_that_never_ends_is_warned_of(load: Callable[..., Environment]) -> None:
    said = [each for each in rules.warnings(load(**declared(arguments=[])), TODAY) if "--available-now" in each]
    assert len(said) == 1
    assert not [each for each in rules.warnings(load(**declared()), TODAY) if "--available-now" in each]


def test_the_description_that_is_deployed_is_the_one_that_the_library_reads(synth: Synth) -> None:
    stack = synth(**declared("cron(0 6 * * ? *)", time_zone="Europe/Berlin"))["resource"]
    text = stack["aws_ssm_parameter"]["lake_job"]["value"]
    for said in (
        '"schedule" = "cron(0 6 * * ? *)"',
        '"timeZone" = "Europe/Berlin"',
        '"scheduleGroup" = aws_scheduler_schedule_group.schedules.name',
        '"scheduleRoleArn" = aws_iam_role.schedules.arn',
    ):
        assert said in text, text
    assert {"schedule", "time_zone", "schedule_group", "schedule_role_arn"} <= set(Deployment.__struct_fields__)


def test_a_group_and_a_role_are_declared_with_the_first_schedule(synth: Synth) -> None:
    stack = synth(**declared())
    resources = stack["resource"]
    assert resources["aws_scheduler_schedule_group"]["schedules"]["name"] == "kinesis-efo-test"
    role = resources["aws_iam_role"]["schedules"]
    assert role["name"] == "kinesis-efo-test-jobs@schedules"
    assert role["permissions_boundary"]
    documents = stack["data"]["aws_iam_policy_document"]
    (trust,) = documents["schedules_trust"]["statement"]
    assert trust["principals"] == [{"type": "Service", "identifiers": ["scheduler.amazonaws.com"]}]
    assert {each["variable"]: each["values"] for each in trust["condition"]} == {
        "aws:SourceAccount": [ACCOUNT],
        "aws:SourceArn": [GROUP],
    }
    start, tag, passed = documents["schedules"]["statement"]
    assert start["actions"] == ["emr-serverless:StartJobRun"]
    assert start["resources"] == ["${aws_emrserverless_application.jobs.arn}"]
    assert tag["resources"] == ["${aws_emrserverless_application.jobs.arn}/jobruns/*"]
    assert passed["resources"] == [RUNTIME]
    assert passed["condition"][0]["values"] == ["emr-serverless.amazonaws.com"]
    alarm = resources["aws_cloudwatch_metric_alarm"]["schedules_failures"]
    watched = {each["metric"]["metric_name"]: each["metric"] for each in alarm["metric_query"] if "metric" in each}
    assert set(watched) == {"TargetErrorCount", "InvocationDroppedCount"}
    assert all(each["namespace"] == "AWS/Scheduler" for each in watched.values())
    assert all(set(each["dimensions"]) == {"ScheduleGroup"} for each in watched.values())


def test_without_a_schedule_nothing_of_it_is_declared(synth: Synth) -> None:
    stack = synth(**declared(None))
    assert "aws_scheduler_schedule_group" not in stack["resource"]
    assert "chedule" not in stack["resource"]["aws_ssm_parameter"]["lake_job"]["value"]
    assert "schedules" not in stack["resource"].get("aws_iam_role", {})


def test_local_aws_which_has_no_emr_gets_no_schedule(synth: Synth, load: Callable[..., Environment]) -> None:
    stack = synth(localized(load(**declared())))
    assert "aws_scheduler_schedule_group" not in stack["resource"]
    assert "chedule" not in stack["resource"]["aws_ssm_parameter"]["lake_job"]["value"]


def test_an_application_of_somebody_else_is_started_there(synth: Synth) -> None:
    access = {"kind": "emr-serverless", "application_id": "00def"}
    stack = synth(**declared(access=access, target="serverless:00def"))
    start = stack["data"]["aws_iam_policy_document"]["schedules"]["statement"][0]
    assert start["resources"] == [f"arn:aws:emr-serverless:{HERE}:/applications/00def"]


@pytest.fixture
def environment(load: Callable[..., Environment]) -> Environment:
    return load(pipeline={"repository": "acme/lake"}, **declared())


def statements(environment: Environment, *kinds: str) -> list[Statement]:
    policies = permissions.policies(environment)
    text = iam.policy_json([each for kind in kinds for each in policies[kind]])
    return list(json.loads(text)["Statement"])


def test_the_role_that_applies_sets_the_schedules_of_its_own_group_only(environment: Environment) -> None:
    kinds = [kind for kind in permissions.policies(environment) if kind != "boundary"]
    applies = statements(environment, *kinds)
    mine, others = (f"arn:aws:scheduler:{HERE}:schedule/{group}/lake" for group in ("kinesis-efo-test", "default"))
    for action in ("CreateSchedule", "UpdateSchedule", "DeleteSchedule", "GetSchedule"):
        assert allowed(applies, f"scheduler:{action}", mine, {})
        assert not allowed(applies, f"scheduler:{action}", others, {})
    for action in (
        "CreateScheduleGroup",
        "DeleteScheduleGroup",
        "GetScheduleGroup",
        "TagResource",
        "ListTagsForResource",
    ):
        assert allowed(applies, f"scheduler:{action}", GROUP, {})
        assert not allowed(applies, f"scheduler:{action}", f"{GROUP}-2", {})
    to_scheduler = {"iam:PassedToService": "scheduler.amazonaws.com"}
    assert allowed(applies, "iam:PassRole", ROLE, to_scheduler)
    assert not allowed(applies, "iam:PassRole", RUNTIME, to_scheduler), "a job's role is not Scheduler's"
    made = {"aws:RequestTag/environment": "test", "aws:RequestTag/managed-by": "kinesis-efo"}
    assert allowed(applies, "iam:CreateRole", ROLE, {"iam:PermissionsBoundary": boundary_of(environment), **made})
    plans = statements(environment, *permissions.PLANNING)
    assert allowed(plans, "scheduler:GetScheduleGroup", GROUP, {})
    assert not allowed(plans, "scheduler:UpdateSchedule", mine, {})


def boundary_of(environment: Environment) -> str:
    from infra.settings.names import Names

    return Names(environment).boundary_arn


def test_the_schedules_role_does_its_work_within_the_boundary_and_no_other_role_does(environment: Environment) -> None:
    from infra.stacks.permissions.scheduling import start_jobs

    own = list(json.loads(iam.policy_json(start_jobs(environment, APPLICATION)))["Statement"])
    within = statements(environment, "boundary")
    passed = {"iam:PassedToService": "emr-serverless.amazonaws.com"}
    work = [
        ("emr-serverless:StartJobRun", APPLICATION, OURS),
        ("emr-serverless:TagResource", f"{APPLICATION}/jobruns/00r1", NEW),
        ("iam:PassRole", RUNTIME, passed),
    ]
    for action, resource, context in work:
        by = {**context, "aws:PrincipalArn": ROLE}
        assert allowed(own, action, resource, by), action
        assert allowed(within, action, resource, by), action
        assert not allowed(within, action, resource, {**context, "aws:PrincipalArn": RUNTIME}), action
    by = {"aws:PrincipalArn": ROLE}
    assert not allowed(within, "emr-serverless:StartJobRun", APPLICATION, {**by, "aws:ResourceTag/environment": "prod"})
    assert not allowed(within, "iam:PassRole", RUNTIME, {**by, "iam:PassedToService": "ec2.amazonaws.com"})
    assert not allowed(within, "iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin", {**by, **passed})
    assert not allowed(own, "emr-serverless:StartJobRun", f"{APPLICATION}2", by)


def test_an_application_of_somebody_else_is_within_the_boundary_when_a_schedule_names_it(
    load: Callable[..., Environment],
) -> None:
    access = {"kind": "emr-serverless", "application_id": "00def"}
    settings = declared(access=access, target="serverless:00def")
    within = statements(load(pipeline={"repository": "acme/lake"}, **settings), "boundary")
    elsewhere = f"arn:aws:emr-serverless:{HERE}:/applications/00def"
    assert allowed(within, "emr-serverless:StartJobRun", elsewhere, {"aws:PrincipalArn": ROLE})
    assert not allowed(within, "emr-serverless:StartJobRun", f"{elsewhere}0", {"aws:PrincipalArn": ROLE})
