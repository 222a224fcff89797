"""Submits a job: plans it from the user's request, checks it, stops the live runs that it replaces, uploads its files and starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kinesis_efo.clock import Clock
from kinesis_efo.errors import PlatformError, StillRunningError, SubmissionRefusedError, UsageError
from kinesis_efo.leases.owner import readable
from kinesis_efo.leases.store import LeaseStore
from kinesis_efo.manifest import Manifest
from kinesis_efo_tools.emr import checks
from kinesis_efo_tools.emr.artifacts import Artifact, Store
from kinesis_efo_tools.emr.coordination import living_owners, until_free
from kinesis_efo_tools.emr.following import Report, stop
from kinesis_efo_tools.emr.job import (
    FINGERPRINT_SETTING,
    MARKER_SETTING,
    SCHEDULED_SETTING,
    Job,
    digest,
    job_name,
    lease_timeout,
    refuse_braces,
    spark_settings,
)
from kinesis_efo_tools.emr.packing import PythonPlatform
from kinesis_efo_tools.emr.platform import Platform
from kinesis_efo_tools.emr.target import JobRun, Site, TargetKind


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """The user's request to run a job. `arguments` are passed to the program; `--manifest` is added if it is missing."""

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
    scheduled: bool = False

    @property
    def name(self) -> str:
        """The name of the application's runs."""
        return job_name(self.manifest.environment, self.manifest.application)


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of the target and of the application's runs before a job is submitted.

    Attributes:
        site: Description of the target; None if it could not be read.
        known: All runs of the application, newest first.
        live: The runs that have not ended.
        unknown: A sentence for each part that could not be read.
    """

    site: Site | None
    known: Sequence[JobRun] = ()
    live: Sequence[JobRun] = ()
    unknown: Sequence[str] = ()


def look(platform: Platform, name: str, *, tolerant: bool = False) -> Situation:
    """Get EMR's description of the target and the runs of an application.

    If a call fails, raises PlatformError; with `tolerant`, adds a sentence to `Situation.unknown` instead.
    """
    site: Site | None = None
    known: Sequence[JobRun] = ()
    live: Sequence[JobRun] = ()
    unknown = []
    try:
        site = platform.site()
    except PlatformError as error:
        if not tolerant:
            raise
        unknown.append(f"whether {platform.target} is as the job needs it: {error}")
    try:
        known, live = platform.runs(name), platform.live(name)
    except PlatformError as error:
        if not tolerant:
            raise
        unknown.append(f"whether the application runs there already: {error}")
    return Situation(site, known, live, unknown)


def plan(request: JobRequest, kind: TargetKind, store: Store, previous: Sequence[JobRun]) -> Job:
    """Create a job from a request.

    `previous` has earlier runs, newest first. The job's token depends on the newest one: two submissions at the same time start one run,
    and a submission after the end of that run starts another. Raises UsageError if a setting cannot be passed to EMR, or the role is
    missing.
    """
    if kind not in (TargetKind.CLUSTER, TargetKind.GLUE) and not request.role_arn:
        raise UsageError(f"--execution-role is missing: a job on {kind} runs with a role of its own")
    if not request.location.startswith(("ssm://", "s3://")):
        raise UsageError(
            f"--manifest must be ssm:///name or s3://bucket/key, which the job can read as well; got {request.location!r}"
        )
    arguments = list(request.arguments)
    if not any(each == "--manifest" or each.startswith("--manifest=") for each in arguments):
        arguments = ["--manifest", request.location, *arguments]
    archive = store.uri(request.archive.key)
    settings = spark_settings(kind, archive, arguments, request.spark)
    if kind is TargetKind.CLUSTER:
        refuse_braces((*arguments, *(f"{name}={value}" for name, value in settings.items())))
    if request.scheduled:
        settings[SCHEDULED_SETTING] = "true"
    environment = request.manifest.environment
    streams = {name: [each.stream_arn, each.consumer_arn] for name, each in request.manifest.streams.items()}
    fingerprint = digest(
        request.name, archive, request.program.digest, arguments, settings, request.role_arn, request.release_label, request.logs,
        request.logs_key_arn, request.manifest.lease_table, streams,
    )  # fmt: skip
    token = digest(fingerprint, previous[0].id if previous else "")[:32]
    settings[FINGERPRINT_SETTING] = fingerprint
    if kind is not TargetKind.SERVERLESS:
        settings[MARKER_SETTING] = store.uri(f"stops/{request.name}/{token}")
    return Job(
        name=request.name,
        program=store.uri(request.program.key),
        arguments=arguments,
        spark=settings,
        role_arn=request.role_arn,
        release_label=request.release_label,
        logs=request.logs,
        logs_key_arn=request.logs_key_arn,
        fingerprint=fingerprint,
        token=token,
        archive=archive,
        tags={"environment": environment, "managed-by": "kinesis-efo"} if environment else {},
    )


async def refusals(
    request: JobRequest,
    platform: Platform,
    site: Site | None,
    live: Sequence[JobRun],
    *,
    kinesis: Any,
    leases: LeaseStore,
    clock: Clock,
    replacing: bool,
) -> list[str]:
    """Check a job before it is submitted; returns a sentence for each reason why it must not be submitted.

    `site` is None if unknown. `live` has the runs that have not ended; if `replacing`, they will be stopped first.
    """
    reasons: list[str] = []
    if site is not None:
        reasons += [
            *site.faults,
            *checks.release_faults(platform.target, site, request.release_label),
            *checks.architecture_faults(platform.target, site, request.built),
        ]
    reasons += checks.consumer_faults(request.manifest, kinesis)
    table = await checks.table_faults(leases)
    reasons += table
    if not replacing:
        described = ", ".join(f"{run.id} ({run.told})" for run in live)
        if live:
            reasons.append(
                f"application {request.manifest.application!r} runs already on {platform.target}: {described}; stop it, or use --replace"
            )
        elif not table and (owners := await living_owners(leases, clock, lease_timeout(request.arguments))):
            reasons.append(
                f"application {request.manifest.application!r} is read by {', '.join(map(readable, sorted(owners)))}, which renews its leases in "
                f"{leases.label} and is not a run on {platform.target}: stop it where it runs"
            )
    return reasons


async def make_room(
    live: Sequence[JobRun],
    platform: Platform,
    leases: LeaseStore,
    clock: Clock,
    report: Report,
    *,
    grace: int,
    lease_seconds: float,
    mark: Callable[[str], bool],
) -> list[JobRun]:
    """Stop the live runs of an application, and wait until its leases are free.

    Returns the ended runs. `grace` and `mark` are passed to `following.stop`; `lease_seconds` is the lease timeout. Raises
    StillRunningError if a run does not end, or a worker still renews leases.
    """
    ended = [(await stop(platform, run, clock, report, grace=grace, mark=mark)).run for run in live]
    if owners := await until_free(leases, clock, lease_seconds):
        raise StillRunningError(
            f"{', '.join(map(readable, sorted(owners)))} still renews its leases in {leases.label}, although every known run has ended: "
            "nothing was submitted; stop the job where it runs"
        )
    return ended


def submit(job: Job, platform: Platform, store: Store, request: JobRequest, remark: Callable[[str], None]) -> str:
    """Upload missing files of a job to S3, and submit the job.

    Returns the ID of the run. `remark` is called with a line for each file. Raises PlatformError if S3 or EMR rejects a call.
    """
    upload(store, request, remark)
    return platform.submit(job)


def upload(store: Store, request: JobRequest, remark: Callable[[str], None]) -> None:
    """Upload missing files of a job to S3.

    `remark` is called with a line for each file. Raises PlatformError if S3 rejects a call.
    """
    for artifact in (request.archive, request.program):
        size = artifact.path.stat().st_size / 1e6
        done = "uploaded" if store.upload(artifact) else "is there already:"
        remark(f"{done} {store.uri(artifact.key)} ({size:.1f} MB)")


def ensure(reasons: Sequence[str]) -> None:
    """Raise SubmissionRefusedError with the reasons against submitting a job, if there are any."""
    if reasons:
        raise SubmissionRefusedError("not submitted:\n" + "\n".join(f"  {reason}" for reason in reasons))
