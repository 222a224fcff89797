"""``kinesis-efo emr submit``: checks a job and starts it once, or sets its schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.errors import SubmissionRefusedError, UsageError
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.commands.emr import DIST, Submit
from kinesis_efo_tools.cli.emr import package
from kinesis_efo_tools.cli.emr.context import Context
from kinesis_efo_tools.cli.emr.runs import remark, run_data
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.emr.artifacts import archive_artifact, program_artifact
from kinesis_efo_tools.emr.following import until_running
from kinesis_efo_tools.emr.job import MARKER_SETTING, Job, lease_timeout
from kinesis_efo_tools.emr.packing import read_archive
from kinesis_efo_tools.emr.schedules import Schedule
from kinesis_efo_tools.emr.serverless import Serverless
from kinesis_efo_tools.emr.submission import JobRequest, Situation, ensure, look, make_room, plan, refusals, upload
from kinesis_efo_tools.emr.submission import submit as submit_job
from kinesis_efo_tools.emr.target import JobRun, TargetKind

_EKS_RELEASE: Final = "emr-spark-8.0.0-latest"


def submit(given: Submit) -> None:
    settings = _pairs(given.conf or [])
    if given.upload and not given.dry_run:
        raise UsageError("--upload goes with --dry-run: without it, files are uploaded anyway; leave it out")
    with Context.open(given) as context:
        deployed = context.deployment
        program = program_artifact(_program(given.project, given.job or (deployed.program if deployed else None)))
        ready = read_archive(given.archive) if given.archive else None
        glue = context.target.kind is TargetKind.GLUE
        target = ready.platform if ready else package.platform(given, deployed, glue=glue)
        draft = JobRequest(
            manifest=context.manifest,
            location=context.location,
            archive=archive_artifact(ready) if ready else program,
            built=target,
            program=program,
            arguments=given.argument or (list(deployed.arguments) if deployed else []),
            spark={**(deployed.spark if deployed else {}), **settings},
            role_arn=given.execution_role or (deployed.role_arn if deployed else None),
            release_label=given.release_label or _release_label(context),
            logs=given.logs or (deployed.logs if deployed else None),
            logs_key_arn=(deployed.logs_key_arn if deployed and not given.logs else None),
            scheduled=bool(deployed and deployed.schedule),
        )
        try:
            # Check before packing, which takes a while. The archive does not exist yet, so the draft contains the program in its place.
            found = asyncio.run(_checked(context, draft, SystemClock(), given))
            request = (
                draft
                if ready
                else replaced(draft, archive=archive_artifact(package.built(given.project, DIST, target, glue=glue)))
            )
            data = asyncio.run(_submit(context, request, SystemClock(), given, found))
        except SubmissionRefusedError as error:
            raise CommandExit(output.ExitCode.REFUSED, str(error)) from None
        except KeyboardInterrupt:
            raise CommandExit(
                output.ExitCode.INTERRUPTED,
                f"no longer watching; the submitted job continues. See: {context.command('status')}",
            ) from None
    # A dry run prints the request, which is JSON.
    output.answer(given.as_json or given.dry_run, data, lambda: _submitted_view(data))


async def _checked(context: Context, draft: JobRequest, clock: Clock, given: Submit) -> Situation:
    """Check a job before it is packed and submitted, and return the state of the target and its runs.

    Raises UsageError if a setting cannot be passed to EMR or an option is missing, PlatformError if EMR rejects a call and this is not a
    dry run, SubmissionRefusedError if a check fails.
    """
    platform = context.platform
    plan(draft, context.target.kind, context.store(given.artifacts), ())
    found = look(platform, draft.name, tolerant=given.dry_run)
    if given.if_changed and found.live and not given.dry_run:
        # Skip the checks for now: if the live run already executes this job, nothing is submitted. Otherwise, `_make_room` checks it.
        return found
    scheduled = not given.now and context.schedule is not None
    lasting = [run for run in found.live if not (scheduled and run.scheduled)]
    replacing = (bool(lasting) and (given.replace or given.if_changed)) or (scheduled and not lasting)
    async with context.leases() as leases:
        ensure(
            await refusals(
                draft, platform, found.site, lasting,
                kinesis=context.client("kinesis"), leases=leases, clock=clock,
                # `replacing` skips the search for live readers. Without --dry-run, `_make_room` searches right before the submission. With
                # --upload, an orchestrator submits the job later, so the present readers do not matter.
                replacing=replacing or not given.dry_run or given.upload,
            )
        )  # fmt: skip
    return found


def _not_checked(request: JobRequest, found: Situation) -> list[str]:
    """List what a dry run does not check."""
    role = f"the role {request.role_arn}" if request.role_arn else "the role of the target"
    return [
        *found.unknown,
        f"whether you may pass on {role}, and whether it allows what the job does",
        f"whether the image of the release has Python {request.built.python}",
        f"whether {request.program.path.name} takes these arguments",
    ]


async def _submit(
    context: Context, request: JobRequest, clock: Clock, given: Submit, found: Situation
) -> dict[str, Any]:
    platform, store = context.platform, context.store(given.artifacts)
    # Packing takes a while, so list the runs again before a submission.
    if not given.dry_run:
        found = look(platform, request.name)
    known, live = found.known, found.live
    job = plan(request, context.target.kind, store, known)
    data: dict[str, Any] = {"target": str(context.target), "application": request.manifest.application}
    data |= {"fingerprint": job.fingerprint, "archive": request.archive.digest, "program": request.program.digest}
    if not given.now and (schedule := context.schedule):
        return data | await _set_schedule(context, request, schedule, clock, given, job, found)
    if not (given.now or given.dry_run) and context.unschedule():
        output.remark(f"deleted the schedule of {request.manifest.application}: from now on, the job is kept running")
    if (
        given.if_changed
        and not given.upload
        and (unchanged := next((run for run in live if platform.same(run, job)), None))
    ):
        # Keep the live run's files in S3: EMR reads them when it restarts the run, and the bucket expires old files.
        upload(store, request, output.remark)
        return {**data, "submitted": False, "replaced": [], "run": run_data(unchanged)}
    if given.dry_run:
        if given.upload:
            upload(store, request, output.remark)
            # Omit the stop marker: if an orchestrator submits the request twice, both runs would have the same one and stop together.
            job = replaced(job, spark={name: value for name, value in job.spark.items() if name != MARKER_SETTING})
        data |= {"submitted": False, "replaces": [run.id for run in live]}
        data["notChecked"] = _tell(_not_checked(request, found))
        return {**data, "request": platform.request(job), "parameters": platform.parameters(job)}
    ended = await _make_room(context, request, clock, given, found, live, busy=False)
    identifier = submit_job(job, platform, store, request, output.remark)
    output.remark(f"submitted {identifier} to {platform.target}")
    if not given.follow:
        run = platform.run(identifier)
    else:
        run = await until_running(platform, identifier, clock, remark, given.patience)
    return {**data, "submitted": True, "replaced": [each.id for each in ended], "run": run_data(run)}


async def _make_room(
    context: Context,
    request: JobRequest,
    clock: Clock,
    given: Submit,
    found: Situation,
    live: Sequence[JobRun],
    *,
    busy: bool,
) -> Sequence[JobRun]:
    """Check a job right before it is submitted, then stop and return the runs that it replaces. With `busy`, ignores live lease owners."""
    replacing = bool(live) and (given.replace or given.if_changed)
    async with context.leases() as leases:
        ensure(
            await refusals(
                request, context.platform, found.site, live,
                kinesis=context.client("kinesis"), leases=leases, clock=clock, replacing=replacing or busy,
            )
        )  # fmt: skip
        if not replacing:
            return ()
        output.remark(f"stopping {', '.join(run.id for run in live)}")
        return await make_room(
            live, context.platform, leases, clock, remark,
            grace=given.grace, lease_seconds=lease_timeout(request.arguments), mark=lambda uri: context.mark(uri, given.artifacts),
        )  # fmt: skip


async def _set_schedule(
    context: Context,
    request: JobRequest,
    schedule: Schedule,
    clock: Clock,
    given: Submit,
    job: Job,
    found: Situation,
) -> dict[str, Any]:
    """Set the schedule of a job. A run that the schedule started continues; any other live run is stopped first."""
    platform = context.platform
    assert isinstance(platform, Serverless), "checked by Context.schedule"
    lasting = [run for run in found.live if not run.scheduled]
    start = platform.scheduled(job)
    if given.dry_run:
        untold = _tell(_not_checked(request, found))
        shown = {"replaces": [run.id for run in lasting], "notChecked": untold, "request": schedule.request(start)}
        return {"submitted": False, **shown}
    # If no run has to be stopped, ignore live readers (`busy`): they may belong to a run that the schedule started.
    replaced = await _make_room(context, request, clock, given, found, lasting, busy=not lasting)
    upload(context.store(given.artifacts), request, output.remark)
    change = context.schedules.put(schedule, start)
    output.remark(f"{change} schedule {schedule.name} in group {schedule.group}")
    told = {"group": schedule.group, "name": schedule.name, "expression": schedule.expression}
    told |= {"timeZone": schedule.time_zone, "change": change.value}
    return {"submitted": False, "replaced": [each.id for each in replaced], "schedule": told}


def _tell(unknown: list[str]) -> list[str]:
    for each in unknown:
        output.remark(f"not checked: {each}")
    return unknown


def _program(project: Path, job: str | None) -> Path:
    if not job:
        raise UsageError(
            "--job is missing: the program to run is needed, such as jobs/archive.py, or a job declared in the environment file"
        )
    if job.isidentifier():
        return project / "jobs" / f"{job}.py"
    return project / job


def _release_label(context: Context) -> str:
    if context.target.kind is not TargetKind.EKS:
        return ""
    # On EKS, the suffix `-latest` selects the newest image of a release.
    return f"{context.deployment.release_label}-latest" if context.deployment else _EKS_RELEASE


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--conf must be NAME=VALUE, such as spark.executor.instances=4; got {text!r}")
        pairs[name] = value
    return pairs


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
        ("logs", output.text("\n".join(run["logs"]), keep="\n") if run["logs"] else None),
        ("fingerprint", data["fingerprint"][:16]),
    ]
    return output.table(["", f"{data['application']} on {data['target']}"], rows)
