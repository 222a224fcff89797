"""An application of EMR Serverless is stopped, after its jobs, before a plan changes it."""

from dataclasses import dataclass, field

import pytest

from infra.errors import PipelineError
from infra.pipeline.jobs import Answer
from infra.pipeline.pausing import Pause
from infra.settings.model import Environment
from kinesis_efo_infra.pipeline.limits import Plan
from kinesis_efo_local import LocalAws
from kinesis_efo_tools.emr.job import job_name
from tests.integration.pipeline.conftest import Checkout
from tests.support.emr import FakeEmr, FakeRun
from tests.unit.infra.pipeline.test_jobs import FakeTime

APPLICATION = "00abc"
ARGUMENTS = ["--output", "$output", "--checkpoint", "$checkpoint", "--option", "leaseTimeout=1s"]
PLACES = {"output": "s3://lake/raw", "checkpoint": "s3://lake/checkpoints"}
DECLARED = {
    "emr": {},
    "applications": {"lake": {"streams": ["orders"], **PLACES, "access": {"kind": "emr-serverless"}}},
    "jobs": [{"application": "lake", "program": "jobs/archive.py", "arguments": ARGUMENTS}],
}
NEWER = {"release_label": "emr-spark-8.1.0"}
BEFORE = {"id": APPLICATION, "release_label": "emr-spark-8.0.0"}
CHANGE = {"actions": ["update"], "before": BEFORE, "after": {**BEFORE, **NEWER}}
KIND = "aws_emrserverless_application"
PLAN: Plan = {"resource_changes": [{"address": f"{KIND}.jobs", "type": KIND, "change": CHANGE}]}


@dataclass
class FakeCommands:
    """A fake `kinesis-efo`: stops the runs of an application at once."""

    emr: FakeEmr
    stops: int = 0
    schedule: bool = False
    ran: list[str] = field(default_factory=list)

    def __call__(self, *arguments: str) -> Answer:
        command = arguments[1]
        self.ran.append(command)
        runs = [run for run in self.emr.runs.values() if run.name == "kinesis-efo-lake"]
        if command == "stop":
            for run in runs:
                run.state = "CANCELLED" if self.stops == 0 else run.state
            return Answer(self.stops, {})
        told = {"target": f"serverless:{APPLICATION}", "runs": [{"id": run.id} for run in runs]}
        return Answer(0, {**told, **({"schedule": {"expression": "rate(1 hour)"}} if self.schedule else {})})


@pytest.fixture
def environment(checkout: Checkout) -> Environment:
    return checkout("pause", **DECLARED).environment


def running(emr: FakeEmr, name: str) -> FakeRun:
    """A job run on the application."""
    client = emr.client("emr-serverless")
    started = client.start_job_run(
        applicationId=APPLICATION,
        clientToken=name,
        executionRoleArn="arn:aws:iam::111122223333:role/lake",
        name=name,
        jobDriver={"sparkSubmit": {"entryPoint": "s3://artifacts/archive.py"}},
    )
    client.close()
    emr.runs[started["jobRunId"]].state = "RUNNING"
    return emr.runs[started["jobRunId"]]


def pause(emr: FakeEmr, commands: FakeCommands, patience: float = 60) -> Pause:
    return Pause(lambda _: emr.client("emr-serverless"), commands, FakeTime(), patience)


@pytest.mark.parametrize(("schedule", "ran"), [(True, ["status", "stop"]), (False, ["status"])])
def test_schedule_without_a_run_is_stopped(
    schedule: bool, ran: list[str], emr: FakeEmr, environment: Environment
) -> None:
    commands = FakeCommands(emr, schedule=schedule)
    pause(emr, commands)(environment, PLAN)
    assert commands.ran == ran
    assert emr.site["state"] == "STOPPED"


@pytest.mark.parametrize("state", ["CREATED", "STOPPED"])
def test_idle_application_is_left_alone(state: str, emr: FakeEmr, environment: Environment) -> None:
    emr.site["state"] = state
    pause(emr, commands := FakeCommands(emr))(environment, PLAN)
    pause(emr, commands)(environment, {})
    assert (commands.ran, emr.calls) == ([], ["GetApplication"])


def test_foreign_run_is_not_stopped(emr: FakeEmr, environment: Environment) -> None:
    running(emr, "kinesis-efo-lake")
    other = running(emr, "report")
    commands = FakeCommands(emr)
    theirs = rf"{other.id} \(report\) runs there, which this environment does not declare"
    with pytest.raises(PipelineError, match=theirs):
        pause(emr, commands)(environment, PLAN)
    assert commands.ran == ["status"]
    assert "StopApplication" not in emr.calls


def test_job_that_does_not_stop_is_an_error(emr: FakeEmr, environment: Environment) -> None:
    running(emr, "kinesis-efo-lake")
    with pytest.raises(PipelineError, match=r"lake does not stop \(exit code 1; .* nothing was applied; `make jobs`"):
        pause(emr, FakeCommands(emr, stops=1))(environment, PLAN)


def test_application_that_does_not_stop_is_an_error(
    emr: FakeEmr, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emr, "emr_serverless_stop_application", lambda **_: {})
    with pytest.raises(PipelineError, match="is still STARTED after 60 s; nothing was applied"):
        pause(emr, FakeCommands(emr))(environment, PLAN)


def test_refusal_by_emr_is_an_error(emr: FakeEmr, environment: Environment) -> None:
    emr.refusal = "AccessDeniedException"
    with pytest.raises(PipelineError, match=r"application 00abc cannot be stopped: .*AccessDeniedException"):
        pause(emr, FakeCommands(emr))(environment, PLAN)


@pytest.mark.long
def test_application_changes_between_two_runs_of_its_job(
    aws: LocalAws, emr: FakeEmr, checkout: Checkout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinesis_efo_infra.pipeline.plans.scan_plans", lambda *_: type("Result", (), {"failed": []}))
    repository = checkout("paused", **DECLARED)
    assert repository.step("plan", "--commit", "one") == 0
    assert repository.step("apply", "--commit", "one") == 0
    run = running(emr, job_name("paused", "lake"))
    repository.commit(emr=NEWER)
    assert repository.step("plan", "--commit", "two") == 0
    assert repository.comment() == 0
    assert f"{KIND}.jobs: release_label: EMR changes an application only" in capsys.readouterr().out
    assert "StopApplication" not in emr.calls
    assert repository.step("apply", "--commit", "two") == 0
    assert run.state == "CANCELLED"
    assert emr.site["state"] == "STOPPED"
    assert emr.calls.index("CancelJobRun") < emr.calls.index("StopApplication")
