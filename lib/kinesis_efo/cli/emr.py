"""``kinesis-efo emr``: packs a job, submits it to EMR, shows its runs, and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from kinesis_efo.cli import output
from kinesis_efo.cli.emr_context import Context, Given
from kinesis_efo.cli.emr_options import DIST
from kinesis_efo.cli.emr_runs import run_data
from kinesis_efo.cli.failing import Ended
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.emr.artifacts import archive_artifact, program_artifact
from kinesis_efo.emr.coordination import until_free
from kinesis_efo.emr.following import Stopped, until_running
from kinesis_efo.emr.following import stop as stop_run
from kinesis_efo.emr.job import Job, lease_timeout
from kinesis_efo.emr.packing import Archive, PythonPlatform, read_archive
from kinesis_efo.emr.packing import package as build
from kinesis_efo.emr.schedules import Schedule
from kinesis_efo.emr.serverless import Serverless
from kinesis_efo.emr.submission import JobRequest, Situation, ensure, look, make_room, plan, refusals, same, upload
from kinesis_efo.emr.submission import submit as submit_job
from kinesis_efo.emr.target import Kind, Run
from kinesis_efo.errors import PackagingError, SubmissionRefusedError, UsageError
from kinesis_efo.leases.owner import readable
from kinesis_efo.options import AwsSettings

_EKS_RELEASE: Final = "emr-spark-8.0.0-latest"


def package(
    *,
    aws: AwsSettings,
    project: Path,
    python: str | None,
    architecture: str | None,
    out: Path,
    environment: str | None,
    application: str | None,
    as_json: bool,
) -> None:
    """Carry out the command, with its options as `commands.emr` declares them."""
    if environment or application:
        given = Given(environment=environment, application=application)
        with Context.deployed(given, aws) as deployed:
            python, architecture = python or deployed.python, architecture or deployed.architecture
    archive = _build(project, out, _platform(python, architecture))
    output.answer(as_json, _archive_data(archive), lambda: _archive_view(archive))


def submit(
    *,
    aws: AwsSettings,
    argument: list[str] | None,
    environment: str | None,
    application: str | None,
    target: str | None,
    manifest: str | None,
    job: str | None,
    archive: Path | None,
    project: Path,
    python: str | None,
    architecture: str | None,
    artifacts: str | None,
    execution_role: str | None,
    release_label: str | None,
    logs: str | None,
    conf: list[str] | None,
    replace: bool,
    if_changed: bool,
    grace: int,
    now: bool,
    dry_run: bool,
    follow: bool,
    patience: float,
    as_json: bool,
) -> None:
    """Carry out the command, with its options as `commands.emr` declares them."""
    given = Given(environment, application, target, manifest, artifacts)
    settings = _pairs(conf or [])
    with Context.open(given, aws) as context:
        deployed = context.deployment
        program = program_artifact(_program(project, job or (deployed.program if deployed else None)))
        mode = _SubmitMode(replace, if_changed, grace, now, dry_run, patience if follow else None)
        ready = read_archive(archive) if archive else None
        built = (
            ready.platform
            if ready
            else _platform(
                python or (deployed.python if deployed else None),
                architecture or (deployed.architecture if deployed else None),
            )
        )
        draft = JobRequest(
            manifest=context.manifest,
            location=context.location,
            archive=archive_artifact(ready) if ready else program,
            built=built,
            program=program,
            arguments=argument or (list(deployed.arguments) if deployed else []),
            spark={**(deployed.spark if deployed else {}), **settings},
            role_arn=execution_role or (deployed.role_arn if deployed else None),
            release_label=release_label or _release_label(context),
            logs=logs or (deployed.logs if deployed else None),
            logs_key_arn=(deployed.logs_key_arn if deployed and not logs else None),
            scheduled=bool(deployed and deployed.schedule),
        )
        try:
            # Packing takes a while: what would be refused anyway is refused before it. Until then, the program stands for the archive.
            found = asyncio.run(_checked(context, draft, SystemClock(), mode))
            request = draft if ready else replaced(draft, archive=archive_artifact(_build(project, DIST, built)))
            data = asyncio.run(_submit(context, request, SystemClock(), mode, found))
        except SubmissionRefusedError as error:
            raise Ended(output.ExitCode.REFUSED, str(error)) from None
        except KeyboardInterrupt:
            raise Ended(
                output.ExitCode.INTERRUPTED,
                f"no longer watching; what was submitted goes on. See: {context.command('status')}",
            ) from None
    # A dry run prints the request, which is JSON.
    output.answer(as_json or dry_run, data, lambda: _submitted_view(data))


@dataclass(frozen=True, slots=True)
class _SubmitMode:
    """How to submit a job, as the command line says.

    Attributes:
        replace: Stop a live run first.
        if_changed: Submit nothing if exactly this job runs; else as `replace`.
        grace: Seconds for a live run to end by itself.
        now: Start a job that has a schedule once, and leave the schedule alone.
        dry_run: Change nothing.
        patience: Seconds to wait until the job runs; None to return at once.
    """

    replace: bool
    if_changed: bool
    grace: int
    now: bool
    dry_run: bool
    patience: float | None


async def _checked(context: Context, draft: JobRequest, clock: Clock, mode: _SubmitMode) -> Situation:
    """Refuse a job that could not work; returns what EMR said.

    Raises:
        UsageError: A setting cannot be passed to EMR, or something is missing.
        PlatformError: EMR gives no answer, and something is to be submitted.
        SubmissionRefusedError: The job could not work.
    """
    platform = context.platform
    plan(draft, context.target.kind, context.store, ())
    found = look(platform, draft.name, tolerant=mode.dry_run)
    if mode.if_changed and found.live and not mode.dry_run:
        # It may be exactly what runs.
        return found
    scheduled = not mode.now and context.schedule is not None
    lasting = [run for run in found.live if not (scheduled and run.scheduled)]
    replacing = (bool(lasting) and (mode.replace or mode.if_changed)) or (scheduled and not lasting)
    async with context.leases() as leases:
        ensure(
            await refusals(
                draft, platform, found.site, lasting,
                kinesis=context.client("kinesis"), leases=leases, clock=clock,
                # Who reads just now is asked right before something is submitted: it takes a while, and may change until then.
                replacing=replacing or not mode.dry_run,
            )
        )  # fmt: skip
    return found


def _not_checked(request: JobRequest, found: Situation) -> list[str]:
    """What a dry run cannot tell."""
    role = f"the role {request.role_arn}" if request.role_arn else "the role of the cluster"
    return [
        *found.unknown,
        f"whether you may pass on {role}, and whether it allows what the job does",
        f"whether the image of the release has Python {request.built.python}",
        f"whether {request.program.path.name} takes these arguments",
    ]


async def _submit(
    context: Context, request: JobRequest, clock: Clock, mode: _SubmitMode, found: Situation
) -> dict[str, Any]:
    platform, store = context.platform, context.store
    # Packing took a while; a dry run has asked all that it can.
    if not mode.dry_run:
        found = look(platform, request.name)
    known, live = found.known, found.live
    job = plan(request, context.target.kind, store, known)
    data: dict[str, Any] = {"target": str(context.target), "application": request.manifest.application}
    data |= {"fingerprint": job.fingerprint, "archive": request.archive.digest, "program": request.program.digest}
    if not mode.now and (schedule := context.schedule):
        return data | await _set_schedule(context, request, schedule, clock, mode, job, found)
    if not (mode.now or mode.dry_run) and context.unschedule():
        output.remark(f"deleted the schedule of {request.manifest.application}: from now on, the job is kept running")
    if mode.if_changed and (unchanged := same(live, job)):
        return {**data, "submitted": False, "replaced": [], "run": run_data(unchanged)}
    if mode.dry_run:
        untold = _tell(_not_checked(request, found))
        shown = {"replaces": [run.id for run in live], "notChecked": untold, "request": platform.request(job)}
        return {**data, "submitted": False, **shown}
    async with context.leases() as leases:
        replacing = bool(live) and (mode.replace or mode.if_changed)
        ensure(
            await refusals(
                request, platform, found.site, live,
                kinesis=context.client("kinesis"), leases=leases, clock=clock, replacing=replacing,
            )
        )  # fmt: skip
        replaced: Sequence[Run] = ()
        if replacing:
            output.remark(f"stopping {', '.join(run.id for run in live)}")
            replaced = await make_room(
                live, platform, leases, clock, _report,
                grace=mode.grace, lease_seconds=lease_timeout(request.arguments), mark=context.mark,
            )  # fmt: skip
    identifier = submit_job(job, platform, store, request, output.remark)
    output.remark(f"submitted {identifier} to {platform.target}")
    if mode.patience is None:
        run = platform.run(identifier)
    else:
        run = await until_running(platform, identifier, clock, _report, mode.patience)
    return {**data, "submitted": True, "replaced": [each.id for each in replaced], "run": run_data(run)}


async def _set_schedule(
    context: Context,
    request: JobRequest,
    schedule: Schedule,
    clock: Clock,
    mode: _SubmitMode,
    job: Job,
    found: Situation,
) -> dict[str, Any]:
    """Give a job its schedule. A run that the schedule has started is left alone; one that would go on for ever is stopped."""
    platform = context.platform
    assert isinstance(platform, Serverless), "checked by Context.schedule"
    lasting = [run for run in found.live if not run.scheduled]
    replacing = bool(lasting) and (mode.replace or mode.if_changed)
    start = platform.scheduled(job)
    if mode.dry_run:
        untold = _tell(_not_checked(request, found))
        shown = {"replaces": [run.id for run in lasting], "notChecked": untold, "request": schedule.request(start)}
        return {"submitted": False, **shown}
    async with context.leases() as leases:
        ensure(
            await refusals(
                request, platform, found.site, lasting,
                # A run of the schedule may read just now.
                kinesis=context.client("kinesis"), leases=leases, clock=clock, replacing=replacing or not lasting,
            )
        )  # fmt: skip
        replaced: Sequence[Run] = ()
        if replacing:
            output.remark(f"stopping {', '.join(run.id for run in lasting)}")
            replaced = await make_room(
                lasting, platform, leases, clock, _report,
                grace=mode.grace, lease_seconds=lease_timeout(request.arguments), mark=context.mark,
            )  # fmt: skip
    upload(context.store, request, output.remark)
    change = context.schedules.put(schedule, start)
    output.remark(f"{change} schedule {schedule.name} in group {schedule.group}")
    told = {"group": schedule.group, "name": schedule.name, "expression": schedule.expression}
    told |= {"timeZone": schedule.time_zone, "change": change.value}
    return {"submitted": False, "replaced": [each.id for each in replaced], "schedule": told}


def stop(
    *,
    aws: AwsSettings,
    environment: str | None,
    application: str | None,
    target: str | None,
    manifest: str | None,
    grace: int,
    as_json: bool,
) -> None:
    """Carry out the command, with its options as `commands.emr` declares them."""
    with Context.open(Given(environment, application, target, manifest, None), aws) as context:
        # First, or it might start another run.
        unscheduled = context.unschedule()
        stopped, owners = asyncio.run(_stop(context, SystemClock(), grace))
    data = {
        "target": str(context.target),
        "application": context.manifest.application,
        "stopped": [{**run_data(each.run), "graceful": each.graceful} for each in stopped],
        "leaseOwners": owners,
        "scheduleDeleted": unscheduled,
    }
    if unscheduled:
        output.remark("deleted its schedule; `kinesis-efo emr submit` sets it again")
    output.answer(as_json, data, lambda: _stopped_view(stopped))
    if owners:
        who = ", ".join(map(readable, owners))
        raise Ended(
            output.ExitCode.FAILED,
            f"{who} still renews leases of {context.manifest.application}: stop it where it runs",
        )


async def _stop(context: Context, clock: Clock, grace: int) -> tuple[list[Stopped], list[str]]:
    live = context.platform.live(context.name)
    stopped = [await stop_run(context.platform, run, clock, _report, grace=grace, mark=context.mark) for run in live]
    if not stopped:
        output.remark(f"nothing runs on {context.target} for {context.manifest.application}")
    seconds = lease_timeout(context.deployment.arguments if context.deployment else ())
    async with context.leases() as leases:
        return stopped, sorted(await until_free(leases, clock, seconds))


def _tell(unknown: list[str]) -> list[str]:
    for each in unknown:
        output.remark(f"not checked: {each}")
    return unknown


def _platform(python: str | None, architecture: str | None) -> PythonPlatform:
    try:
        return PythonPlatform(python or "3.11", architecture or "x86_64")  # type: ignore[arg-type]  # checked by PythonPlatform
    except PackagingError as error:
        raise UsageError(str(error)) from None


def _build(project: Path, out: Path, platform: PythonPlatform) -> Archive:
    output.remark(f"packing {project.resolve().name} for Python {platform.python} on {platform.architecture}")
    return build(project, out, platform)


def _program(project: Path, job: str | None) -> Path:
    if not job:
        raise UsageError(
            "--job is missing: the program to run is needed, such as jobs/archive.py, or a job declared in the environment file"
        )
    if job.isidentifier():
        return project / "jobs" / f"{job}.py"
    return project / job


def _release_label(context: Context) -> str:
    if context.target.kind is not Kind.EKS:
        return ""
    # This suffix names the newest image of a release on EKS.
    return f"{context.deployment.release_label}-latest" if context.deployment else _EKS_RELEASE


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--conf must be NAME=VALUE, such as spark.executor.instances=4; got {text!r}")
        pairs[name] = value
    return pairs


def _report(run: Run) -> None:
    output.remark(f"{run.id} {run.told}")


def _archive_data(archive: Archive) -> dict[str, Any]:
    return {
        "archive": str(archive.path),
        "digest": archive.digest,
        "bytes": archive.path.stat().st_size,
        "python": archive.platform.python,
        "architecture": archive.platform.architecture,
        "packages": dict(archive.packages),
    }


def _archive_view(archive: Archive) -> RenderableType:
    data = _archive_data(archive)
    rows = [(name, str(data[name])) for name in ("digest", "python", "architecture")]
    size = f"{data['bytes'] / 1e6:.1f} MB, {len(archive.packages)} packages"
    return output.table(["archive", str(archive.path)], [*rows, ("size", size)])


def _submitted_view(data: dict[str, Any]) -> RenderableType:
    if schedule := data.get("schedule"):
        rows = [
            ("schedule", f"{schedule['expression']} in {schedule['timeZone']}, {schedule['change']}"),
            ("replaced", ", ".join(data["replaced"]) or None),
            ("fingerprint", data["fingerprint"][:16]),
        ]
        return output.table(["", f"{data['application']} on {data['target']}"], rows)
    run = data["run"]
    rows = [
        ("run", f"{run['id']} ({run['told']})" + ("" if data["submitted"] else ", unchanged: nothing was submitted")),
        ("replaced", ", ".join(data["replaced"]) or None),
        ("logs", "\n".join(run["logs"]) or None),
        ("fingerprint", data["fingerprint"][:16]),
    ]
    return output.table(["", f"{data['application']} on {data['target']}"], rows)


def _stopped_view(stopped: Sequence[Stopped]) -> RenderableType:
    rows = [(each.run.id, "by itself" if each.graceful else "by EMR", each.run.told) for each in stopped]
    return output.table(["run", "ended", "EMR says"], rows)
