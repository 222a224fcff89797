"""The three ways of EMR through botocore: what is asked, and what is understood of the answers."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import PlatformError
from kinesis_efo_tools.emr.clusters import Clusters
from kinesis_efo_tools.emr.containers import Containers
from kinesis_efo_tools.emr.job import Job
from kinesis_efo_tools.emr.platform import Platform
from kinesis_efo_tools.emr.serverless import Serverless
from kinesis_efo_tools.emr.target import JobRunState, Target
from tests.support.emr import APPLICATION, CLUSTER, VIRTUAL_CLUSTER, FakeEmr

TOKEN = "0a" * 16
MARKER = f"s3://b/stops/{TOKEN}"
SPACED = {"spark.driver.extraJavaOptions": "-Da=1 -Db=2"}
SPARK_DEFAULTS = [{"classification": "spark-defaults", "properties": SPACED}]
JOB = Job(
    name="kinesis-efo-dev-lake",
    program="s3://b/programs/0b/archive.py",
    arguments=["--manifest", "ssm:///m", "--trigger", "1 minute"],
    spark={
        "spark.b": "2",
        "spark.a": "1",
        "spark.kinesisEfo.fingerprint": "f1",
        "spark.kinesisEfo.stopMarker": MARKER,
        **SPACED,
    },
    role_arn="arn:aws:iam::123456789012:role/lake",
    release_label="emr-spark-8.0.0-latest",
    logs="s3://b/logs/lake",
    logs_key_arn="arn:aws:kms:us-east-1:123456789012:key/1",
    fingerprint="f1",
    token=TOKEN,
    tags={"environment": "dev", "managed-by": "kinesis-efo"},
)
CONF = ["--conf", "spark.a=1", "--conf", "spark.b=2", "--conf", "spark.kinesisEfo.fingerprint=f1",
        "--conf", f"spark.kinesisEfo.stopMarker={MARKER}"]  # fmt: skip
PLATFORMS = {
    "cluster": ("emr", Clusters, CLUSTER),
    "serverless": ("emr-serverless", Serverless, APPLICATION),
    "eks": ("emr-containers", Containers, VIRTUAL_CLUSTER),
}


@contextmanager
def _opened(emr: FakeEmr, kind: str) -> Iterator[Platform]:
    service, made, identifier = PLATFORMS[kind]
    with closing(emr.client(service)) as client:
        yield made(Target.parse(f"{kind}:{identifier}"), client)


@pytest.fixture(params=PLATFORMS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def platform(emr: FakeEmr, kind: str) -> Iterator[Platform]:
    with _opened(emr, kind) as opened:
        yield opened


SUBMITTED = {
    "entryPoint": JOB.program,
    "entryPointArguments": list(JOB.arguments),
    "sparkSubmitParameters": " ".join(CONF),
}
EXPECTED: dict[str, dict[str, Any]] = {
    "cluster": {
        "JobFlowId": CLUSTER,
        "ExecutionRoleArn": JOB.role_arn,
        "Steps": [
            {
                "Name": JOB.name,
                "ActionOnFailure": "CONTINUE",
                "HadoopJarStep": {
                    "Jar": "command-runner.jar",
                    "Args": ["spark-submit", "--deploy-mode", "cluster", "--name", JOB.name, *CONF[:4],
                             "--conf", "spark.driver.extraJavaOptions=-Da=1 -Db=2", *CONF[4:],
                             "--conf", f"spark.yarn.tags=kinesis-efo-{TOKEN}", JOB.program, *JOB.arguments],
                },
            }
        ],
    },
    "serverless": {
        "applicationId": APPLICATION,
        "clientToken": TOKEN,
        "executionRoleArn": JOB.role_arn,
        "name": JOB.name,
        "mode": "STREAMING",
        "tags": JOB.tags,
        "retryPolicy": {"maxFailedAttemptsPerHour": 5},
        "jobDriver": {"sparkSubmit": SUBMITTED},
        "configurationOverrides": {
            "applicationConfiguration": SPARK_DEFAULTS,
            "monitoringConfiguration": {
                "s3MonitoringConfiguration": {"logUri": JOB.logs, "encryptionKeyArn": JOB.logs_key_arn}
            }
        },
    },
    "eks": {
        "virtualClusterId": VIRTUAL_CLUSTER,
        "clientToken": TOKEN,
        "executionRoleArn": JOB.role_arn,
        "name": JOB.name,
        "releaseLabel": "emr-spark-8.0.0-latest",
        "retryPolicyConfiguration": {"maxAttempts": 100},
        "jobDriver": {"sparkSubmitJobDriver": SUBMITTED},
        "configurationOverrides": {
            "applicationConfiguration": SPARK_DEFAULTS,
            "monitoringConfiguration": {
                "persistentAppUI": "ENABLED",
                "containerLogRotationConfiguration": {"rotationSize": "100MB", "maxFilesToKeep": 10},
                "s3MonitoringConfiguration": {"logUri": JOB.logs},
            }
        },
    },
}  # fmt: skip


def test_the_request_is_the_one_that_is_shown(emr: FakeEmr, platform: Platform, kind: str) -> None:
    assert platform.request(JOB) == EXPECTED[kind]
    identifier = platform.submit(JOB)
    asked = EXPECTED[kind]["Steps"][0] if kind == "cluster" else EXPECTED[kind]
    assert asked.items() <= emr.runs[identifier].request.items()


def test_token_makes_two_submissions_one_run(emr: FakeEmr, platform: Platform, kind: str) -> None:
    again = platform.submit(JOB) == platform.submit(JOB)
    assert again is (kind != "cluster"), "steps have no token"
    assert platform.submit(replace(JOB, token="t2")) in emr.runs


def test_run_is_found_by_its_name(emr: FakeEmr, platform: Platform, kind: str) -> None:
    other = platform.submit(replace(JOB, name="kinesis-efo-dev-other", token="t0"))
    first, second = platform.submit(JOB), platform.submit(replace(JOB, token="t2"))
    emr.runs[first].state, emr.runs[first].reason = "FAILED", "exit  code\n1"
    assert [run.id for run in platform.runs(JOB.name)] == [second, first]
    assert [run.id for run in platform.live(JOB.name)] == [second]
    (live,) = platform.live(JOB.name)
    assert (live.name, live.fingerprint) == (JOB.name, "f1")
    assert live.marker == ("" if kind == "serverless" else MARKER)
    failed = platform.run(first)
    assert failed.state is JobRunState.FAILED
    assert "exit code 1" in failed.told or "USER_ERROR" in failed.told
    assert platform.run(other).name == "kinesis-efo-dev-other"
    prefix = {
        "cluster": f"s3://logs/{CLUSTER}/steps/{first}/",
        "serverless": f"s3://b/logs/lake/applications/{APPLICATION}/jobs/{first}/",
        "eks": f"s3://b/logs/lake/{VIRTUAL_CLUSTER}/jobs/{first}/",
    }[kind]
    assert failed.logs[0] == prefix


def test_a_run_is_seen_through_its_life(emr: FakeEmr, platform: Platform) -> None:
    identifier = platform.submit(JOB)
    seen = [platform.run(identifier).state for _ in range(2)]
    platform.cancel(platform.run(identifier), 0)
    seen += [platform.run(identifier).state for _ in range(2)]
    assert seen == [JobRunState.WAITING, JobRunState.RUNNING, JobRunState.STOPPING, JobRunState.STOPPED]
    emr.runs[identifier].state = "COMPLETED" if emr.runs[identifier].service != "emr-serverless" else "SUCCESS"
    assert platform.run(identifier).state is JobRunState.SUCCEEDED


@pytest.mark.parametrize(("grace", "asked"), [(0, "0"), (1, "15"), (600, "600"), (9000, "1800")])
def test_grace_on_serverless_has_bounds(emr: FakeEmr, grace: int, asked: str) -> None:
    with _opened(emr, "serverless") as platform:
        platform.cancel(platform.run(platform.submit(JOB)), grace)
    assert emr.only().cancelled[0]["shutdownGracePeriodInSeconds"] == asked


FOREIGN = ("x; touch /tmp/x", "$(id)", f"kinesis-efo-{TOKEN}x", f"kinesis-efo-{TOKEN}\n", "kinesis-efo-", "")


@pytest.mark.parametrize(
    ("state", "tag"), [("PENDING", f"kinesis-efo-{TOKEN}"), *(("RUNNING", tag) for tag in FOREIGN)]
)
def test_no_driver_of_a_waiting_or_foreign_step_ends(emr: FakeEmr, state: str, tag: str) -> None:
    with _opened(emr, "cluster") as platform:
        identifier = platform.submit(JOB)
        arguments = emr.only().request["HadoopJarStep"]["Args"]
        arguments[arguments.index(f"spark.yarn.tags=kinesis-efo-{TOKEN}")] = f"spark.yarn.tags={tag}"
        emr.only().state = state
        platform.cancel(platform.run(identifier), 0)
        assert emr.only().cancelled, "the step itself is cancelled, and none is added"


def test_cancelling_a_running_step_ends_only_its_application(emr: FakeEmr, tmp_path: Path) -> None:
    listed = f"application_1\t  {JOB.name}\tSPARK\napplication_2\t{JOB.name}-2\tSPARK\napplication_3\tpayroll\tSPARK"
    asked, yarn = tmp_path / "asked", tmp_path / "yarn"
    yarn.write_text(f"""#!/bin/sh\necho "$@" >> {asked}\n[ "$2" = -list ] && echo '{listed}'\nexit 0\n""")
    yarn.chmod(0o755)
    with _opened(emr, "cluster") as platform:
        identifier = platform.submit(JOB)
        emr.only().state = "RUNNING"
        platform.cancel(platform.run(identifier), 0)
        assert [run.id for run in platform.runs(JOB.name)] == [identifier], "the other step is no run of the job"
    step, end = emr.runs.values()
    assert [each["StepCancellationOption"] for each in step.cancelled] == ["SEND_INTERRUPT"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(end.request["HadoopJarStep"]["Args"], env={"PATH": path}, check=True, timeout=60)
    tagged, killed = asked.read_text().splitlines()
    assert f" -appTags kinesis-efo-{TOKEN} " in f"{tagged} "
    assert killed == "application -kill application_1", "a foreign step could name another application's tag"


def _with_another_token(job: Job) -> Job:
    again = TOKEN.replace("a", "b")
    settings = {**job.spark, "spark.kinesisEfo.stopMarker": MARKER.replace(TOKEN, again)}
    return replace(job, token=again, spark=settings)


FORGED = [
    lambda job: replace(job, program="s3://foreign/programs/0b/archive.py"),
    lambda job: replace(job, role_arn="arn:aws:iam::123456789012:role/foreign"),
    lambda job: replace(job, arguments=[*job.arguments, "--output", "s3://foreign"]),
    lambda job: replace(job, spark={**job.spark, "spark.jars": "s3://foreign/x.jar"}),
    lambda job: replace(job, spark={**job.spark, "spark.kinesisEfo.stopMarker": f"s3://foreign/stops/{TOKEN}"}),
]


def test_same_run_does_exactly_the_same(platform: Platform) -> None:
    platform.submit(_with_another_token(JOB))
    (live,) = platform.live(JOB.name)
    assert platform.same(live, JOB)


@pytest.mark.parametrize("forge", FORGED)
def test_forged_run_is_not_the_same(platform: Platform, forge: Callable[[Job], Job]) -> None:
    platform.submit(forge(_with_another_token(JOB)))
    (live,) = platform.live(JOB.name)
    assert live.fingerprint == JOB.fingerprint
    assert not platform.same(live, JOB)


@pytest.mark.parametrize("driver", [{"Jar": "s3://foreign/x.jar"}, {"MainClass": "foreign.Main"}])
def test_a_step_that_runs_another_jar_is_not_believed(emr: FakeEmr, driver: dict[str, str]) -> None:
    with _opened(emr, "cluster") as platform:
        platform.submit(JOB)
        emr.only().request["HadoopJarStep"].update(driver)
        (live,) = platform.live(JOB.name)
        assert not platform.same(live, JOB)


SITES = [
    ("cluster", {"Status": {"State": "TERMINATED"}}, f"cluster {CLUSTER} is TERMINATED: "),
    ("cluster", {"Applications": [{"Name": "Hive", "Version": "4"}]}, f"cluster {CLUSTER} has Hive, but not Spark: "),
    ("serverless", {"state": "TERMINATED"}, f"EMR Serverless application {APPLICATION} is TERMINATED: "),
    ("serverless", {"type": "Hive"}, f"EMR Serverless application {APPLICATION} runs Hive, not Spark: "),
    ("eks", {"state": "ARRESTED"}, f"virtual cluster {VIRTUAL_CLUSTER} is ARRESTED: "),
]


@pytest.mark.parametrize(("kind", "site", "fault"), SITES)
def test_unusable_target_is_named(emr: FakeEmr, kind: str, site: dict[str, Any], fault: str) -> None:
    with _opened(emr, kind) as platform:
        assert list(platform.site().faults) == []
        emr.site = site
        (found,) = platform.site().faults
        assert found.startswith(fault), "and the remedy"


def test_target_has_its_release(emr: FakeEmr, platform: Platform, kind: str) -> None:
    site = platform.site()
    assert (site.release_label, site.spark, site.architecture) == {
        "cluster": ("emr-spark-8.0.0", "4.0.2-amzn-0", ""),
        "serverless": ("emr-spark-8.0.0", "", "arm64"),
        "eks": ("", "", ""),
    }[kind]


@pytest.mark.parametrize("code", ["AccessDeniedException", "ValidationException"])
def test_refusal_of_emr_is_shown(emr: FakeEmr, platform: Platform, code: str) -> None:
    emr.refusal = code
    calls: list[Callable[[], object]] = [
        platform.site, lambda: platform.submit(JOB), lambda: platform.runs("n"), lambda: platform.run("a1")
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(PlatformError, match=rf"cannot .* \({platform.target}\): .*{code}") as caught:
            call()
        assert ("iam:PassRole" in str(caught.value)) is (code == "AccessDeniedException")


def test_unreachable_endpoint_is_reported(kind: str) -> None:
    nowhere = FakeEmr()
    nowhere.url = "http://127.0.0.1:1"
    with (
        _opened(nowhere, kind) as platform,
        pytest.raises(PlatformError, match=r"cannot look at the .*Could not connect"),
    ):
        platform.site()
