"""What a request comes to, and what is held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kinesis_efo.errors import UsageError
from kinesis_efo.manifest import Manifest, StreamRef
from kinesis_efo_tools.emr.artifacts import Artifact, Store
from kinesis_efo_tools.emr.checks import release_faults
from kinesis_efo_tools.emr.job import FINGERPRINT_SETTING, MARKER_SETTING, Job
from kinesis_efo_tools.emr.packing import PythonPlatform
from kinesis_efo_tools.emr.submission import JobRequest, plan
from kinesis_efo_tools.emr.target import JobRun, JobRunState, Site, Target, TargetKind
from tests.support.messages import raises

STREAM = "arn:aws:kinesis:eu-west-1:111122223333:stream/dev-orders"
MANIFEST = Manifest(
    application="lake", environment="dev", region="eu-west-1", lease_table="leases", source="ssm:///m",
    streams={"orders": StreamRef("orders", "dev-orders", STREAM, f"{STREAM}/consumer/lake:1")}, stream_names={"orders": "dev-orders"},
)  # fmt: skip
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


CHANGES: list[Callable[[JobRequest], JobRequest]] = [
    lambda request: replace(
        request, archive=replace(request.archive, key="environments/0c/environment.tar.gz", digest="0c")
    ),
    lambda request: replace(request, program=replace(request.program, digest="0c")),
    lambda request: replace(request, arguments=["--output", "s3://lake2"]),
    lambda request: replace(request, arguments=["s3://lake", "--output"]),
    lambda request: replace(request, spark={"spark.executor.instances": "3"}),
    lambda request: replace(request, role_arn="arn:aws:iam::111122223333:role/other"),
    lambda request: replace(request, release_label="emr-spark-8.1.0-latest"),
    lambda request: replace(request, logs="s3://logs"),
    lambda request: replace(request, location="ssm:///other"),
    lambda request: replace(request, manifest=replace(MANIFEST, lease_table="other")),
    lambda request: replace(
        request,
        manifest=replace(
            MANIFEST, streams={"orders": replace(MANIFEST.streams["orders"], consumer_arn=f"{STREAM}/consumer/lake:2")}
        ),
    ),
]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_makes_another_job_has_another_fingerprint(change: Callable[[JobRequest], JobRequest]) -> None:
    assert job(change(REQUEST)).fingerprint != job().fingerprint
    assert job(change(REQUEST)).token != job().token


def test_same_job_is_one_run_until_it_ended() -> None:
    assert job() == job()
    again = job(REQUEST, TargetKind.EKS, BEFORE)
    assert again.fingerprint == job().fingerprint
    assert again.token != job().token
    assert again.spark[MARKER_SETTING] != job().spark[MARKER_SETTING], "an old marker stops no new run"


def test_run_has_the_tags_of_its_environment() -> None:
    assert job().tags == {"environment": "dev", "managed-by": "kinesis-efo"}
    by_hand = replace(REQUEST, manifest=replace(REQUEST.manifest, environment=""))
    assert job(by_hand).tags == {}


@pytest.mark.parametrize("kind", TargetKind)
def test_run_has_its_fingerprint_and_marker(kind: TargetKind) -> None:
    made = job(REQUEST, kind)
    assert made.spark[FINGERPRINT_SETTING] == made.fingerprint
    marker = f"s3://artifacts/jobs/stops/kinesis-efo-dev-lake/{made.token}"
    assert made.spark.get(MARKER_SETTING) == (None if kind is TargetKind.SERVERLESS else marker)


@pytest.mark.parametrize("given", [["--manifest", "s3://b/m"], ["--manifest=s3://b/m"]])
def test_a_manifest_among_the_arguments_is_left_alone(given: list[str]) -> None:
    assert job(replace(REQUEST, arguments=given)).arguments == given
    assert list(job().arguments) == ["--manifest", "ssm:///m", "--output", "s3://lake"]


POSITIONS = 'startingPosition={"orders":{"shardId-000000000000":"AFTER:49"}}'


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"arguments": ["--option", POSITIONS]},
            (
                '\'startingPosition={"orders":{"shardId-000000000000":"AFTER:49"}}\': YARN, which starts the job '
                "on a cluster, replaces '}}'; in JSON, write a space between the braces"
            ),
        ),
        (
            {"arguments": ["--name", "{{x} }"]},
            (
                "'{{x} }': YARN, which starts the job on a cluster, replaces '{{'; in JSON, write a space "
                "between the braces"
            ),
        ),
        (
            {"arguments": ["--path", "a<CPS>b"]},
            (
                "'a<CPS>b': YARN, which starts the job on a cluster, replaces '<CPS>'; in JSON, write a space "
                "between the braces"
            ),
        ),
        (
            {"spark": {"spark.driver.extraJavaOptions": "-Da={{b"}},
            (
                "'spark.driver.extraJavaOptions=-Da={{b': YARN, which starts the job on a cluster, replaces "
                "'{{'; in JSON, write a space between the braces"
            ),
        ),
    ],
)
def test_arguments_changed_by_yarn_are_refused(changes: dict[str, Any], said: str) -> None:
    request = replace(REQUEST, **changes)
    with raises(UsageError, said):
        job(request, TargetKind.CLUSTER)
    for kind in (TargetKind.EKS, TargetKind.SERVERLESS):
        assert job(request, kind).arguments[-2:] == request.arguments[-2:]
    spaced = replace(REQUEST, arguments=["--option", POSITIONS.replace("}}", "} }")])
    assert job(spaced, TargetKind.CLUSTER).arguments[-1] == spaced.arguments[-1]


def test_only_a_cluster_has_a_role_to_run_with() -> None:
    assert job(replace(REQUEST, role_arn=None), TargetKind.CLUSTER).role_arn is None
    with raises(UsageError, "--execution-role is missing: a job on eks runs with a role of its own"):
        job(replace(REQUEST, role_arn=None))


@pytest.mark.parametrize(
    ("site", "fits"),
    [
        (Site("emr-spark-8.0.0"), True),
        (Site("emr-spark-8.0-preview"), True),
        (Site("emr-spark-10.2.0"), True),
        (Site("emr-spark-7.0.0"), False),
        (Site("emr-7.13.0"), False),
        (Site(""), False),
        (Site("emr-9.0.0", spark="4.1.0-amzn-0"), True),
        (Site("emr-spark-8.0.0", spark="3.5.6-amzn-2"), False),
    ],
)
def test_a_release_needs_spark_4(site: Site, fits: bool) -> None:
    faults: list[Any] = list(release_faults(Target(TargetKind.CLUSTER, "j-1"), site, ""))
    assert (faults == []) is fits
