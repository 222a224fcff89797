"""The three ways of EMR through botocore: what is asked, and what is understood of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kinesis_efo.emr.clusters import Clusters
from kinesis_efo.emr.containers import Containers
from kinesis_efo.emr.job import Job
from kinesis_efo.emr.platform import Platform
from kinesis_efo.emr.serverless import Serverless
from kinesis_efo.emr.target import State, Target
from kinesis_efo.errors import PlatformError
from tests.support.emr import APPLICATION, CLUSTER, VIRTUAL_CLUSTER, FakeEmr

JOB = Job(
    name="kinesis-efo-dev-lake",
    program="s3://b/programs/0b/archive.py",
    arguments=["--manifest", "ssm:///m", "--trigger", "1 minute"],
    spark={
        "spark.b": "2",
        "spark.a": "1",
        "spark.kinesisEfo.fingerprint": "f1",
        "spark.kinesisEfo.stopMarker": "s3://b/stops/1",
    },
    role_arn="arn:aws:iam::123456789012:role/lake",
    release_label="emr-spark-8.0.0-latest",
    logs="s3://b/logs/lake",
    logs_key_arn="arn:aws:kms:us-east-1:123456789012:key/1",
    fingerprint="f1",
    token="t1",
    tags={"environment": "dev", "managed-by": "kinesis-efo"},
)
CONF = ["--conf", "spark.a=1", "--conf", "spark.b=2", "--conf", "spark.kinesisEfo.fingerprint=f1",
        "--conf", "spark.kinesisEfo.stopMarker=s3://b/stops/1"]  # fmt: skip
PLATFORMS = {
    "cluster": ("emr", Clusters, CLUSTER),
    "serverless": ("emr-serverless", Serverless, APPLICATION),
    "eks": ("emr-containers", Containers, VIRTUAL_CLUSTER),
}
Open = Callable[[str], Platform]


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
                    "Args": ["spark-submit", "--deploy-mode", "cluster", "--name", JOB.name, *CONF,
                             "--conf", "spark.yarn.tags=kinesis-efo-t1", JOB.program, *JOB.arguments],
                },
            }
        ],
    },
    "serverless": {
        "applicationId": APPLICATION,
        "clientToken": "t1",
        "executionRoleArn": JOB.role_arn,
        "name": JOB.name,
        "mode": "STREAMING",
        "tags": {"environment": "dev", "managed-by": "kinesis-efo"},
        "retryPolicy": {"maxFailedAttemptsPerHour": 5},
        "jobDriver": {
            "sparkSubmit": {
                "entryPoint": JOB.program,
                "entryPointArguments": list(JOB.arguments),
                "sparkSubmitParameters": " ".join(CONF),
            }
        },
        "configurationOverrides": {
            "monitoringConfiguration": {
                "s3MonitoringConfiguration": {"logUri": JOB.logs, "encryptionKeyArn": JOB.logs_key_arn}
            }
        },
    },
    "eks": {
        "virtualClusterId": VIRTUAL_CLUSTER,
        "clientToken": "t1",
        "executionRoleArn": JOB.role_arn,
        "name": JOB.name,
        "releaseLabel": "emr-spark-8.0.0-latest",
        "retryPolicyConfiguration": {"maxAttempts": 100},
        "jobDriver": {
            "sparkSubmitJobDriver": {
                "entryPoint": JOB.program,
                "entryPointArguments": list(JOB.arguments),
                "sparkSubmitParameters": " ".join(CONF),
            }
        },
        "configurationOverrides": {
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


def test_a_value_with_spaces_is_passed_on(emr: FakeEmr, platform: Platform, kind: str) -> None:
    options = {"spark.driver.extraJavaOptions": "-Da=1 -Db=2"}
    job = replace(JOB, spark={**JOB.spark, **options}, logs=None)
    request = emr.runs[platform.submit(job)].request
    if kind == "cluster":
        assert "spark.driver.extraJavaOptions=-Da=1 -Db=2" in request["HadoopJarStep"]["Args"]
    else:
        configuration = [{"classification": "spark-defaults", "properties": options}]
        assert request["configurationOverrides"]["applicationConfiguration"] == configuration
    if isinstance(platform, Serverless):
        scheduled = platform.scheduled(job)["ConfigurationOverrides"]
        assert scheduled == {"ApplicationConfiguration": [{"Classification": "spark-defaults", "Properties": options}]}
    (run,) = platform.live(JOB.name)
    assert run.fingerprint == "f1"


def test_submitted_twice_it_is_one_run_where_emr_takes_a_token(emr: FakeEmr, platform: Platform, kind: str) -> None:
    again = platform.submit(JOB) == platform.submit(JOB)
    assert again is (kind != "cluster"), "steps have no token"
    assert platform.submit(replace(JOB, token="t2")) in emr.runs


def test_a_run_is_found_by_its_name_and_tells_what_it_is(emr: FakeEmr, platform: Platform, kind: str) -> None:
    other = platform.submit(replace(JOB, name="kinesis-efo-dev-other", token="t0"))
    first, second = platform.submit(JOB), platform.submit(replace(JOB, token="t2"))
    emr.runs[first].state, emr.runs[first].reason = "FAILED", "exit  code\n1"
    assert [run.id for run in platform.runs(JOB.name)] == [second, first]
    assert [run.id for run in platform.live(JOB.name)] == [second]
    (live,) = platform.live(JOB.name)
    assert (live.name, live.fingerprint) == (JOB.name, "f1")
    assert live.marker == ("" if kind == "serverless" else "s3://b/stops/1")
    failed = platform.run(first)
    assert failed.state is State.FAILED
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
    assert seen == [State.WAITING, State.RUNNING, State.STOPPING, State.STOPPED]
    emr.runs[identifier].state = "COMPLETED" if emr.runs[identifier].service != "emr-serverless" else "SUCCESS"
    assert platform.run(identifier).state is State.SUCCEEDED


@pytest.mark.parametrize(("grace", "asked"), [(0, "0"), (1, "15"), (600, "600"), (9000, "1800")])
def test_emr_serverless_grants_a_run_its_time_within_its_bounds(emr: FakeEmr, grace: int, asked: str) -> None:
    with _opened(emr, "serverless") as platform:
        platform.cancel(platform.run(platform.submit(JOB)), grace)
    assert emr.only().cancelled[0]["shutdownGracePeriodInSeconds"] == asked


def test_cancelling_a_running_step_has_yarn_end_the_driver(emr: FakeEmr) -> None:
    with _opened(emr, "cluster") as platform:
        identifier = platform.submit(JOB)
        platform.run(identifier)
        platform.cancel(platform.run(identifier), 0)
        step, end = emr.runs.values()
        assert [each["StepCancellationOption"] for each in step.cancelled] == ["SEND_INTERRUPT"]
        command = end.request["HadoopJarStep"]["Args"]
        assert command[:2] == ["bash", "-c"]
        assert "-appTags kinesis-efo-t1 " in command[2]
        assert "{print $1}" in command[2]
        assert command[2].endswith("yarn application -kill")
        assert [run.id for run in platform.runs(JOB.name)] == [identifier], "the other step is no run of the job"


def test_a_step_that_waits_has_no_driver_to_end(emr: FakeEmr) -> None:
    with _opened(emr, "cluster") as platform:
        identifier = platform.submit(JOB)
        waiting = platform.run(identifier)
        assert waiting.state is State.WAITING
        platform.cancel(waiting, 0)
    assert len(emr.runs) == 1


SITES = [
    ("cluster", {"Status": {"State": "TERMINATED"}}, f"cluster {CLUSTER} is TERMINATED: "),
    ("cluster", {"Applications": [{"Name": "Hive", "Version": "4"}]}, f"cluster {CLUSTER} has Hive, but not Spark: "),
    ("serverless", {"state": "TERMINATED"}, f"EMR Serverless application {APPLICATION} is TERMINATED: "),
    ("serverless", {"type": "Hive"}, f"EMR Serverless application {APPLICATION} runs Hive, not Spark: "),
    ("eks", {"state": "ARRESTED"}, f"virtual cluster {VIRTUAL_CLUSTER} is ARRESTED: "),
]


@pytest.mark.parametrize(("kind", "site", "fault"), SITES)
def test_a_target_that_takes_no_jobs_is_told_of(emr: FakeEmr, kind: str, site: dict[str, Any], fault: str) -> None:
    with _opened(emr, kind) as platform:
        assert list(platform.site().faults) == []
        emr.site = site
        (found,) = platform.site().faults
        assert found.startswith(fault), "and the remedy"


def test_a_target_tells_its_release(emr: FakeEmr, platform: Platform, kind: str) -> None:
    site = platform.site()
    assert (site.release_label, site.spark, site.architecture) == {
        "cluster": ("emr-spark-8.0.0", "4.0.2-amzn-0", ""),
        "serverless": ("emr-spark-8.0.0", "", "arm64"),
        "eks": ("", "", ""),
    }[kind]


@pytest.mark.parametrize("code", ["AccessDeniedException", "InvalidRequestException", "ValidationException"])
def test_what_emr_refuses_is_said_with_its_words_and_the_target(emr: FakeEmr, platform: Platform, code: str) -> None:
    emr.refusal = code
    calls: list[Callable[[], object]] = [
        platform.site, lambda: platform.submit(JOB), lambda: platform.runs("n"), lambda: platform.run("a1")
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(PlatformError, match=rf"cannot .* \({platform.target}\): .*{code}") as caught:
            call()
        assert ("iam:PassRole" in str(caught.value)) is (code == "AccessDeniedException")


def test_where_nobody_answers_that_is_said(kind: str) -> None:
    nowhere = FakeEmr()
    nowhere.url = "http://127.0.0.1:1"
    with (
        _opened(nowhere, kind) as platform,
        pytest.raises(PlatformError, match=r"cannot look at the .*Could not connect"),
    ):
        platform.site()
