"""Jobs are started one by one; each is healthy before the next is touched, and the first failure stops them."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra.errors import PipelineError, UnhealthyError
from infra.pipeline.jobs import Answer, Commands, keep_running, pack
from infra.settings.model import Environment
from tests.support.commands import program
from tests.unit.infra.conftest import Load

BEHIND = 4


@dataclass
class FakeTime:
    """A clock that moves when somebody waits."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class FakeEmr:
    """A fake `kinesis-efo`: every job is healthy, except as given."""

    codes: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    states: list[list[str]] = field(default_factory=lambda: [["reading", "ended", "waiting"]])
    missing: tuple[str, ...] = ()
    ran: list[tuple[str, str]] = field(default_factory=list)
    arguments: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, *arguments: str) -> Answer:
        application = next(each for each in ("lake", "reports", "pond") if any(each in text for text in arguments))
        command = arguments[1] if arguments[0] == "emr" else arguments[0]
        self.ran.append((command, application))
        self.arguments.append(arguments)
        codes = self.codes.get((command, application), [0])
        code = codes.pop(0) if len(codes) > 1 else codes[0]
        if command != "lag":
            return Answer(code, {"submitted": True})
        states = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        shards = [{"stream": "orders", "shardId": f"s{n}", "state": state} for n, state in enumerate(states)]
        missing = [{"stream": name, "error": "gone"} for name in self.missing]
        return Answer(code, {"applications": [{"shards": shards, "missing": missing}]})


@pytest.fixture
def environment(load: Load) -> Environment:
    job = "program: jobs/a.py, target: 'cluster:j-1'"
    return load(
        "emr: {}, applications: {lake: {streams: [orders], lag_threshold_seconds: 60, access: EC2},"
        "reports: {streams: [orders], continuous: false, access: EC2}, pond: {streams: [orders], access: EC2}},"
        f"jobs: [{{application: lake, {job}}}, {{application: reports, {job}}},"
        f"{{application: pond, {job}, arguments: [--option, leaseTimeout=30s]}}]"
    )


def test_job_is_healthy_before_the_next_is_started(environment: Environment) -> None:
    emr, time = FakeEmr({("lag", "lake"): [BEHIND, BEHIND, 0]}), FakeTime()
    keep_running(environment, Path("project"), emr, time, 600)
    # Reports run now and then: there is nothing to catch up with.
    looks = [("status", "lake"), ("lag", "lake")] * 3
    last = [("submit", "pond"), ("status", "pond"), ("lag", "pond")]
    assert emr.ran == [("submit", "lake"), *looks, ("submit", "reports"), *last]
    where = ("--environment", "test", "--application", "lake", "--region", "eu-west-1")
    assert emr.arguments[0] == ("emr", "submit", *where, "--project", "project", "--if-changed")
    manifest = ("--manifest", "ssm:///kinesis-efo/test/lake")
    assert emr.arguments[2] == ("lag", *manifest, "--region", "eu-west-1", "--fail-above", "60s")
    assert emr.arguments[-1][-4:] == ("--lease-timeout", "30s", "--fail-above", "300s"), "as its leases are kept"


def test_archive_packed_without_keys_is_submitted(environment: Environment, tmp_path: Path) -> None:
    """Packing runs a build backend, which could read the keys from the environment of its parents."""
    emr = FakeEmr()
    with pytest.raises(
        PipelineError, match=r"has 0 archives for the jobs of test, and one is needed.*; nothing was start"
    ):
        keep_running(environment, Path("project"), emr, FakeTime(), 600, tmp_path)
    assert emr.ran == []
    packed, archive = list[tuple[str, ...]](), tmp_path / "environment-py3.11-arm64-c0ffee.tar.gz"

    def package(*arguments: str) -> Answer:
        packed.append(arguments)
        archive.touch()
        return Answer(0, {})

    for _ in range(2):
        pack(environment, Path("project"), tmp_path, package)
    platform = ("--python", "3.11", "--architecture", "arm64")
    assert packed == [("emr", "package", "--project", "project", "--out", str(tmp_path), *platform)]
    keep_running(environment, Path("project"), emr, FakeTime(), 600, tmp_path)
    submitted = [each for each in emr.arguments if each[1] == "submit"]
    assert [each[-3:] for each in submitted] == [("--archive", str(archive), "--if-changed")] * 3
    (tmp_path / "environment-py3.11-arm64-forged.tar.gz").touch()
    with pytest.raises(PipelineError, match="has 2 archives"):
        keep_running(environment, Path("project"), emr, FakeTime(), 600, tmp_path)
    with pytest.raises(PipelineError, match=r"project was not packed for test \(exit code 1;"):
        pack(environment, Path("project"), tmp_path / "other", lambda *_: Answer(1, None))


def test_job_with_a_schedule_is_not_waited_for(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    emr, at = FakeEmr(), "jobs.0.schedule: 'cron(0 6 * * ? *)', jobs.0.time_zone: Europe/Berlin"
    keep_running(load(f"JOB, applications.lake.continuous: false, {at}"), Path("project"), emr, FakeTime(), 600)
    assert emr.ran == [("submit", "lake")]
    assert "lake: runs at cron(0 6 * * ? *), Europe/Berlin" in caplog.text


@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        ({"submit": [3]}, PipelineError, r"lake was not started in test \(exit code 3;"),
        ({"lag": [1]}, UnhealthyError, r"how far lake is behind cannot be told \(exit code 1;"),
        ({"lag": [BEHIND], "status": [0, 1]}, UnhealthyError, "lake does not run any more"),
        ({"lag": [BEHIND]}, UnhealthyError, "lake still is more than 60 s behind after 600 s"),
    ],
)
def test_the_first_failure_stops_it(
    codes: dict[str, list[int]], error: type[PipelineError], message: str, environment: Environment
) -> None:
    emr, time = FakeEmr({(command, "lake"): each for command, each in codes.items()}), FakeTime()
    with pytest.raises(error, match=message):
        keep_running(environment, Path(), emr, time, 600)
    assert emr.ran[-1] == (list(codes)[-1], "lake")
    assert {application for _, application in emr.ran} == {"lake"}
    assert time.seconds < 630


def test_unread_idle_stream_is_not_healthy(environment: Environment) -> None:
    waits = FakeTime()
    emr = FakeEmr(states=[[], ["unstarted", "reading"], ["free", "reading"], ["reading", "reading"]])
    keep_running(environment, Path(), emr, waits, 600)
    assert waits.seconds == 45
    with pytest.raises(UnhealthyError, match="lake still does not read orders/s1 after 600 s"):
        keep_running(environment, Path(), FakeEmr(states=[["reading", "silent"]]), FakeTime(), 600)
    gone = FakeEmr({("lag", "lake"): [BEHIND]}, missing=("clicks",))
    with pytest.raises(UnhealthyError, match="lake still does not read clicks after 600 s"):
        keep_running(environment, Path(), gone, FakeTime(), 600)
    with pytest.raises(UnhealthyError, match="lake still does not read any shard after 600 s"):
        keep_running(environment, Path(), FakeEmr(states=[[]]), FakeTime(), 600)


def test_without_jobs_nothing_is_run(load: Load) -> None:
    emr = FakeEmr()
    keep_running(load(), Path(), emr, FakeTime(), 600)
    assert emr.ran == []


def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PipelineError, match=r"kinesis-efo cannot be run: .*: pip install '\.\[emr\]'"):
        Commands()("lag")


def test_endless_look_at_the_lag_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "kinesis-efo", "exec sleep 60")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(PipelineError, match=r"kinesis-efo lag has not ended within 0\.2 s, and was stopped"):
        Commands(lag_seconds=0.2)("lag")
