"""From what a user says to a job, to the reasons against submitting it, to its run. Relies on everything else in this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinesis_efo.clock import Clock
from kinesis_efo.emr import checks
from kinesis_efo.emr.artifacts import Artifact, Store
from kinesis_efo.emr.coordination import living_owners, until_free
from kinesis_efo.emr.following import Report, stop
from kinesis_efo.emr.job import (
    FINGERPRINT_SETTING,
    MARKER_SETTING,
    Job,
    digest,
    job_name,
    lease_timeout,
    spark_settings,
)
from kinesis_efo.emr.packing import PythonPlatform
from kinesis_efo.emr.platform import Platform
from kinesis_efo.emr.target import Kind, Run, Site
from kinesis_efo.errors import ConfigurationError, StillRunningError, SubmissionRefusedError
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """What a user wants to run.

    Attributes:
        manifest: Of the application.
        location: Where the manifest is, as the job is told.
        archive: The environment archive.
        built: What the archive is for.
        program: The program.
        arguments: Of the program, without the manifest.
        spark: Settings of Spark.
        role_arn: The role of the job.
        release_label: For EMR on EKS.
        logs: Where logs go.
        logs_key_arn: Customer key for them.
    """

    manifest: Manifest
    location: str
    archive: Artifact
    built: PythonPlatform
    program: Artifact
    arguments: Sequence[str] = ()
    spark: Mapping[str, str] = field(default_factory=dict)
    role_arn: str | None = None
    release_label: str = ""
    logs: str | None = None
    logs_key_arn: str | None = None

    @property
    def name(self) -> str:
        """The name of the application's runs."""
        return job_name(self.manifest.environment, self.manifest.application)


def plan(request: JobRequest, kind: Kind, store: Store, previous: Sequence[Run]) -> Job:
    """The job that a request comes to.

    Args:
        request: What the user wants to run.
        kind: Where it runs.
        store: Where its files will be.
        previous: Runs of the application before, newest first. The next run is named after the last one: submitted twice, it is one
            run, and submitted again after it has ended, it is another one.

    Raises:
        ConfigurationError: A setting cannot be passed on, or the role is missing.
    """
    if kind is not Kind.CLUSTER and not request.role_arn:
        raise ConfigurationError(f"--execution-role is missing: a job on {kind} runs with a role of its own")
    if not request.location.startswith(("ssm://", "s3://")):
        raise ConfigurationError(
            f"--manifest must be ssm:///name or s3://bucket/key, which the job can read as well; got {request.location!r}"
        )
    arguments = list(request.arguments)
    if not any(each == "--manifest" or each.startswith("--manifest=") for each in arguments):
        arguments = ["--manifest", request.location, *arguments]
    archive = store.uri(request.archive.key)
    settings = spark_settings(kind, archive, arguments, request.spark)
    streams = {name: [each.stream_arn, each.consumer_arn] for name, each in request.manifest.streams.items()}
    fingerprint = digest(
        request.name, archive, request.program.digest, arguments, settings, request.role_arn, request.release_label, request.logs,
        request.logs_key_arn, request.manifest.lease_table, streams,
    )  # fmt: skip
    token = digest(fingerprint, previous[0].id if previous else "")[:32]
    settings[FINGERPRINT_SETTING] = fingerprint
    if kind is not Kind.SERVERLESS:
        settings[MARKER_SETTING] = store.uri(f"stops/{request.name}/{token}")
    return Job(
        name=request.name,
        archive=archive,
        program=store.uri(request.program.key),
        arguments=arguments,
        spark=settings,
        role_arn=request.role_arn,
        release_label=request.release_label,
        logs=request.logs,
        logs_key_arn=request.logs_key_arn,
        fingerprint=fingerprint,
        token=token,
    )


async def refusals(
    request: JobRequest,
    platform: Platform,
    site: Site,
    live: Sequence[Run],
    *,
    kinesis: Any,
    leases: LeaseStore,
    clock: Clock,
    replacing: bool,
) -> list[str]:
    """Why a job would not work, as sentences; empty where nothing is known against it.

    Args:
        request: The job.
        platform: Where it would run.
        site: What EMR says about that.
        live: Runs of the same application that have not ended.
        kinesis: A botocore Kinesis client.
        leases: The lease table.
        clock: Time.
        replacing: The live run will be stopped first.
    """
    reasons = [
        *site.faults,
        *checks.release_faults(platform.target, site, request.release_label),
        *checks.architecture_faults(platform.target, site, request.built),
        *checks.consumer_faults(request.manifest, kinesis),
    ]
    table = await checks.table_faults(leases)
    reasons += table
    if not replacing:
        told = ", ".join(f"{run.id} ({run.told})" for run in live)
        if live:
            reasons.append(
                f"application {request.manifest.application!r} runs already on {platform.target}: {told}; stop it, or say --replace"
            )
        elif not table and (owners := await living_owners(leases, clock, lease_timeout(request.arguments))):
            reasons.append(
                f"application {request.manifest.application!r} is read by {', '.join(sorted(owners))}, which renews its leases in "
                f"{leases.label} and is no run on {platform.target}: stop it where it runs"
            )
    return reasons


async def make_room(
    live: Sequence[Run],
    platform: Platform,
    leases: LeaseStore,
    clock: Clock,
    report: Report,
    *,
    grace: int,
    lease_seconds: float,
    mark: Callable[[str], None],
) -> list[Run]:
    """Stop the live runs of an application, and wait until its leases are free.

    Args:
        live: The runs.
        platform: Where they are.
        leases: The lease table.
        clock: Time.
        report: Told on the way.
        grace: Seconds that each run has to end by itself.
        lease_seconds: Seconds after which a lease is free: `lease_timeout`.
        mark: As for `stop`.

    Returns:
        The runs as they ended.

    Raises:
        StillRunningError: A run does not end, or someone goes on renewing the leases.
    """
    ended = [(await stop(platform, run, clock, report, grace=grace, mark=mark)).run for run in live]
    if owners := await until_free(leases, clock, lease_seconds):
        raise StillRunningError(
            f"{', '.join(sorted(owners))} still renews its leases in {leases.label}, although every known run has ended: "
            "the job may run elsewhere; nothing was submitted"
        )
    return ended


def submit(job: Job, platform: Platform, store: Store, request: JobRequest, told: Callable[[str], None]) -> str:
    """Upload what is not there yet, and submit a job.

    Args:
        job: The job.
        platform: Where it runs.
        store: Where its files go.
        request: What the job came from.
        told: Told what is done.

    Returns:
        The id of its run.

    Raises:
        PlatformError: S3 or EMR refuses.
    """
    for artifact in (request.archive, request.program):
        size = artifact.path.stat().st_size / 1e6
        done = "uploaded" if store.upload(artifact) else "is there already:"
        told(f"{done} {store.uri(artifact.key)} ({size:.1f} MB)")
    return platform.submit(job)


def ensure(reasons: Sequence[str]) -> None:
    """Go on only where there is no reason not to.

    Raises:
        SubmissionRefusedError: There is.
    """
    if reasons:
        raise SubmissionRefusedError("not submitted:\n" + "\n".join(f"  {reason}" for reason in reasons))


def same(live: Sequence[Run], job: Job) -> Run | None:
    """The live run of exactly this job, if there is one."""
    return next((run for run in live if run.fingerprint == job.fingerprint), None)
