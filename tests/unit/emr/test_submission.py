"""What a request comes to, and what is held against it."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import PackagingError, UsageError
from kinesis_efo_tools.emr.artifacts import Artifact, Store, program_artifact
from kinesis_efo_tools.emr.checks import release_faults
from kinesis_efo_tools.emr.job import FINGERPRINT_SETTING, MARKER_SETTING, Job
from kinesis_efo_tools.emr.packing import PythonPlatform
from kinesis_efo_tools.emr.submission import JobRequest, plan
from kinesis_efo_tools.emr.target import JobRun, JobRunState, Site, Target, TargetKind
from tests.support.messages import raises
from tests.support.shared_runs import manifest

MANIFEST = manifest("orders")
REQUEST = JobRequest(
    manifest=MANIFEST,
    location="ssm:///m",
    archive=Artifact(Path("a.tar.gz"), "environments/0a/environment.tar.gz", "0a"),
    built=PythonPlatform(),
    program=Artifact(Path("archive.py"), "programs/0b/archive.py", "0b"),
    arguments=["--output", "s3://lake"],
    role_arn="arn:aws:iam::111122223333:role/lake",
)
STORE = Store(None, "s3://artifacts/jobs/")
BEFORE = JobRun("r1", REQUEST.name, JobRunState.FAILED, "FAILED", datetime(2026, 1, 1, tzinfo=UTC))


def job(request: JobRequest = REQUEST, kind: TargetKind = TargetKind.EKS, *previous: JobRun) -> Job:
    return plan(request, kind, STORE, previous)


OTHER_CONSUMER = {"orders": replace(MANIFEST.streams["orders"], consumer_arn="another")}
CHANGES: list[dict[str, Any]] = [
    {"archive": replace(REQUEST.archive, key="environments/0c/environment.tar.gz", digest="0c")},
    {"arguments": ["--output", "s3://lake2"]},
    {"spark": {"spark.executor.instances": "3"}},
    {"role_arn": "arn:aws:iam::111122223333:role/other"},
    {"release_label": "emr-spark-8.1.0-latest"},
    {"location": "ssm:///other"},
    {"manifest": replace(MANIFEST, lease_table="other")},
    {"manifest": replace(MANIFEST, streams=OTHER_CONSUMER)},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_changed_job_has_another_fingerprint(changes: dict[str, Any]) -> None:
    changed = job(replace(REQUEST, **changes))
    assert (changed.fingerprint != job().fingerprint, changed.token != job().token) == (True, True)


def test_same_job_is_one_run_until_it_ended() -> None:
    assert job() == job()
    again = job(REQUEST, TargetKind.EKS, BEFORE)
    assert again.fingerprint == job().fingerprint
    assert again.token != job().token
    assert again.spark[MARKER_SETTING] != job().spark[MARKER_SETTING], "an old marker stops no new run"


@pytest.mark.parametrize("kind", TargetKind)
def test_run_has_its_fingerprint_marker_and_tags(kind: TargetKind) -> None:
    made = job(REQUEST, kind)
    assert made.spark[FINGERPRINT_SETTING] == made.fingerprint
    assert made.tags == {"environment": "dev", "managed-by": "kinesis-efo"}
    assert job(replace(REQUEST, manifest=replace(MANIFEST, environment="")), kind).tags == {}
    marker = f"s3://artifacts/jobs/stops/kinesis-efo-dev-lake/{made.token}"
    assert made.spark.get(MARKER_SETTING) == (None if kind is TargetKind.SERVERLESS else marker)


POSITIONS = 'startingPosition={"orders":{"shardId-000000000000":"AFTER:49"}}'


@pytest.mark.parametrize(
    ("changes", "replaced"),
    [
        ({"arguments": ["--option", POSITIONS]}, "'}}'"),
        ({"arguments": ["--name", "{{x} }"]}, "'{{'"),
        ({"arguments": ["--path", "a<CPS>b"]}, "'<CPS>'"),
        ({"spark": {"spark.driver.extraJavaOptions": "-Da={{b"}}, "'{{'"),
    ],
)
def test_arguments_changed_by_yarn_are_refused(changes: dict[str, Any], replaced: str) -> None:
    request = replace(REQUEST, **changes)
    with pytest.raises(UsageError, match=f"which starts the job on a cluster, replaces {replaced}; in JSON"):
        job(request, TargetKind.CLUSTER)
    for kind in (TargetKind.EKS, TargetKind.SERVERLESS):
        assert job(request, kind).arguments[-2:] == request.arguments[-2:]


def test_spaced_braces_reach_a_cluster() -> None:
    said = "'a}}': YARN, which starts the job on a cluster, replaces '}}'; in JSON, write a space between the braces"
    with raises(UsageError, said):
        job(replace(REQUEST, arguments=["--name", "a}}"]), TargetKind.CLUSTER)
    spaced = replace(REQUEST, arguments=["--option", POSITIONS.replace("}}", "} }")])
    assert job(spaced, TargetKind.CLUSTER).arguments[-1] == spaced.arguments[-1]


def test_only_a_cluster_has_a_role_to_run_with() -> None:
    assert job(replace(REQUEST, role_arn=None), TargetKind.CLUSTER).role_arn is None
    with raises(UsageError, "--execution-role is missing: a job on eks runs with a role of its own"):
        job(replace(REQUEST, role_arn=None))


@pytest.mark.parametrize(
    ("label", "spark", "fits"),
    [
        ("emr-spark-8.0.0", "", True), ("emr-spark-8.0-preview", "", True), ("emr-spark-10.2.0", "", True),
        ("emr-spark-7.0.0", "", False), ("emr-7.13.0", "", False), ("", "", False),
        ("emr-9.0.0", "4.1.0-amzn-0", True), ("emr-spark-8.0.0", "3.5.6-amzn-2", False),
    ],
)  # fmt: skip
def test_release_needs_spark_4(label: str, spark: str, fits: bool) -> None:
    faults: list[Any] = list(release_faults(Target(TargetKind.CLUSTER, "j-1"), Site(label, spark=spark), ""))
    assert (faults == []) is fits


def test_wrong_places_are_refused(tmp_path: Path) -> None:
    with raises(UsageError, "--artifacts must be s3://bucket or s3://bucket/prefix; got 'artifacts'"):
        Store(None, "artifacts")
    said = "--manifest must be ssm:///name or s3://bucket/key, which the job can read as well; got 'm.json'"
    with raises(UsageError, said):
        job(replace(REQUEST, location="m.json"))
    with raises(UsageError, "--job must be a Python program, such as jobs/archive.py; got 'jobs/a.jar'"):
        program_artifact(Path("jobs/a.jar"))
    with raises(PackagingError, "--job .../gone.py cannot be read: No such file or directory"):
        program_artifact(tmp_path / "gone.py")
