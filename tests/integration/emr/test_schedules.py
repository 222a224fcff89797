"""Schedules of `kinesis-efo emr`, against EMR as an HTTP server and EventBridge Scheduler in local AWS."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kinesis_efo_local import LocalAws
from tests.integration.emr.conftest import ROLE
from tests.integration.emr.test_commands import SERVERLESS, STEP, Cli, cli
from tests.support.emr import FakeRun

__all__ = ["cli"]

GROUP = "kinesis-efo-test"
SCHEDULER_ROLE = "arn:aws:iam::123456789012:role/kinesis-efo-test-jobs@schedules"
NAMED = ("--environment", "test", "--application", "lake")


@dataclass
class Scheduled:
    """A job that is declared with a schedule, and what Scheduler knows of it.

    Attributes:
        cli: The command line.
        scheduler: A client of Scheduler.
    """

    cli: Cli
    scheduler: Any

    def deploy(self, **changes: object) -> None:
        """Write down how the job is run."""
        described: dict[str, object] = {
            "target": SERVERLESS,
            "roleArn": ROLE,
            "program": "jobs/archive.py",
            "arguments": ["--output", "s3://lake/raw", "--available-now", "--option", "leaseTimeout=1s"],
            "scheduleGroup": GROUP,
            "schedule": "rate(15 minutes)",
            "scheduleRoleArn": SCHEDULER_ROLE,
        }
        described |= changes
        self.cli.place.deploy(**{name: value for name, value in described.items() if value is not None})

    def submit(self, *arguments: str, code: int = 0) -> Any:
        build = ["--project", str(self.cli.place.project), "--archive", str(self.cli.place.archive)]
        command = ["submit", *NAMED, *build, *arguments]
        return self.cli.json(*command) if code == 0 else self.cli(*command, code=code)

    def found(self) -> Any:
        """The schedule, as Scheduler has it."""
        try:
            return self.scheduler.get_schedule(GroupName=GROUP, Name="lake")
        except self.scheduler.exceptions.ResourceNotFoundException:
            return None

    def ring(self, execution: str) -> FakeRun:
        """Start the job as Scheduler does at its time: with the input of the target, whose names it reads as AWS's SDK for Java."""
        found = self.found()
        assert found["Target"]["Arn"] == "arn:aws:scheduler:::aws-sdk:emrserverless:startJobRun"
        text = found["Target"]["Input"].replace("<aws.scheduler.execution-id>", execution)
        emr = self.cli.place.emr.client("emr-serverless")
        run = emr.start_job_run(**small(json.loads(text), but="Tags"))["jobRunId"]
        emr.close()
        return self.cli.place.emr.runs[run]


def small(value: Any, but: str) -> Any:
    """A value with small first letters in all names, but for those in `but`."""
    match value:
        case dict():
            return {
                name[0].lower() + name[1:]: each if name == but else small(each, but) for name, each in value.items()
            }
        case list():
            return [small(each, but) for each in value]
        case _:
            return value


@pytest.fixture
def scheduled(cli: Cli, aws: LocalAws) -> Iterator[Scheduled]:
    scheduler = aws.client("scheduler")
    scheduler.create_schedule_group(Name=GROUP)
    made = Scheduled(cli, scheduler)
    made.deploy()
    yield made
    if made.found():
        scheduler.delete_schedule(GroupName=GROUP, Name="lake")
    scheduler.delete_schedule_group(Name=GROUP)


def test_scheduled_job_is_handed_to_scheduler(scheduled: Scheduled) -> None:
    answer = scheduled.submit("--if-changed")
    assert answer["schedule"] == {
        "group": GROUP, "name": "lake", "expression": "rate(15 minutes)", "timeZone": "UTC", "change": "created",
    }  # fmt: skip
    assert answer["submitted"] is False
    assert scheduled.cli.place.emr.runs == {}
    assert len(scheduled.cli.place.s3) == 2, "the archive and the program are there for the runs to come"
    found = scheduled.found()
    assert found["Target"]["RoleArn"] == SCHEDULER_ROLE
    assert found["FlexibleTimeWindow"] == {"Mode": "OFF"}
    assert found["Target"]["RetryPolicy"] == {"MaximumRetryAttempts": 5, "MaximumEventAgeInSeconds": 300}


def test_scheduled_run_is_that_of_submit(scheduled: Scheduled) -> None:
    scheduled.deploy(spark={"spark.driver.extraJavaOptions": "-Da=1 -Db=2"})
    answer = scheduled.submit()
    first, second = scheduled.ring("a1"), scheduled.ring("b2")
    assert first.id != second.id
    first.state = second.state = "SUCCESS"
    assert scheduled.submit("--now", "--no-follow")["submitted"]
    once = scheduled.cli.place.emr.runs.popitem()[1]
    assert {**once.request, "clientToken": ""} == {**first.request, "clientToken": ""}
    assert first.request["tags"] == {"environment": "test", "managed-by": "kinesis-efo"}
    status = scheduled.cli.json("status", *NAMED, code=1)
    assert [run["id"] for run in status["runs"]] == [second.id, first.id]
    assert status["runs"][0]["fingerprint"] == answer["fingerprint"]
    assert status["schedule"] == {"expression": "rate(15 minutes)", "timeZone": "UTC"}


def test_change_of_the_schedule_leaves_its_run(scheduled: Scheduled) -> None:
    scheduled.submit()
    run = scheduled.ring("a1")
    assert scheduled.submit("--if-changed")["schedule"]["change"] == "unchanged"
    scheduled.deploy(schedule="cron(0 6 ? * MON-FRI *)", timeZone="Europe/Berlin", spark={"spark.executor.cores": "2"})
    assert scheduled.submit("--if-changed")["schedule"]["change"] == "updated"
    found = scheduled.found()
    assert (found["ScheduleExpression"], found["ScheduleExpressionTimezone"]) == (
        "cron(0 6 ? * MON-FRI *)",
        "Europe/Berlin",
    )
    assert "spark.executor.cores=2" in found["Target"]["Input"]
    assert run.cancelled == []


def test_running_job_is_stopped_before_its_schedule(scheduled: Scheduled) -> None:
    scheduled.deploy(schedule=None, scheduleRoleArn=None)
    assert scheduled.submit("--no-follow")["submitted"]
    run = scheduled.cli.place.emr.only()
    scheduled.deploy()
    scheduled.submit(code=3)
    assert "runs already" in scheduled.cli.err
    assert scheduled.found() is None
    assert scheduled.submit("--if-changed")["replaced"] == [run.id]
    assert run.cancelled
    assert scheduled.found() is not None


def test_job_without_its_schedule_runs_once(scheduled: Scheduled) -> None:
    scheduled.submit()
    run = scheduled.ring("a1")
    scheduled.deploy(schedule=None, scheduleRoleArn=None)
    scheduled.submit("--dry-run", code=3)
    assert scheduled.found() is not None, "a dry run changes nothing"
    answer = scheduled.submit("--if-changed", "--no-follow")
    assert scheduled.found() is None
    assert answer["submitted"]
    assert answer["replaced"] == [run.id]
    assert "deleted the schedule of lake" in scheduled.cli.err


def test_stopping_deletes_the_schedule_and_stops_its_run(scheduled: Scheduled) -> None:
    scheduled.submit()
    run = scheduled.ring("a1")
    answer = scheduled.cli.json("stop", *NAMED)
    assert answer["scheduleDeleted"]
    assert [each["id"] for each in answer["stopped"]] == [run.id]
    assert scheduled.found() is None
    assert scheduled.cli.json("stop", *NAMED)["scheduleDeleted"] is False


def test_obstacle_to_a_schedule_is_named(scheduled: Scheduled) -> None:
    scheduled.submit("--target", STEP, code=2)
    assert "which is for EMR Serverless; got --target cluster:j-" in scheduled.cli.err
    scheduled.deploy(scheduleRoleArn=None)
    scheduled.submit(code=2)
    assert "no group or role for it is described: deploy the infrastructure again" in scheduled.cli.err
