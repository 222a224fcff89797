"""``kinesis-efo emr status``, ``emr logs`` and ``emr stop``: shows an application's runs and their logs, and stops them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType

from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.errors import PlatformError
from kinesis_efo.leases.owner import readable
from kinesis_efo_tools.cli import output
from kinesis_efo_tools.cli.commands.emr import Logs, Status, Stop
from kinesis_efo_tools.cli.emr.context import Context
from kinesis_efo_tools.cli.failing import CommandExit
from kinesis_efo_tools.emr.coordination import until_free
from kinesis_efo_tools.emr.driver_logs import driver_log
from kinesis_efo_tools.emr.following import StopResult
from kinesis_efo_tools.emr.following import stop as stop_run
from kinesis_efo_tools.emr.job import lease_timeout
from kinesis_efo_tools.emr.target import JobRun

_SHOWN: Final = 5


def status(given: Status) -> None:
    with Context.open(given) as context:
        known = context.platform.runs(context.name)[:_SHOWN]
        # Look up each run: the list of runs in EMR Serverless has fewer fields.
        runs = [context.platform.run(run.id) for run in known]
    live = any(not run.state.ended for run in runs)
    data = {
        "target": str(context.target),
        "application": context.manifest.application,
        "live": live,
        "runs": [run_data(run) for run in runs],
    }
    if context.deployment and context.deployment.schedule:
        data["schedule"] = {"expression": context.deployment.schedule, "timeZone": context.deployment.time_zone}
    output.answer(given.as_json, data, lambda: _runs_view(runs, f"{context.name} on {context.target}"))
    if not live:
        raise output.stop(output.ExitCode.FAILED)


def logs(given: Logs) -> None:
    with Context.open(given) as context:
        found = _chosen(context, given.run)
        log = driver_log(context.client("s3"), found, given.lines)
    data = {**run_data(found), "files": list(log.uris), "lines": list(log.lines), "reason": log.reason}
    output.answer(given.as_json, data, lambda: Group(*(output.text(each, keep="\t") for each in log.lines)))
    if given.as_json:
        return
    output.remark("")
    output.remark(f"run {found.id}: {found.told}; from {', '.join(log.uris)}")
    output.remark(f"the driver: {log.reason or 'gives no reason for an end'}")


def stop(given: Stop) -> None:
    with Context.open(given) as context:
        # Delete the schedule first, so that it does not start another run.
        unscheduled = context.unschedule()
        stopped, owners = asyncio.run(_stop(context, SystemClock(), given))
    data = {
        "target": str(context.target),
        "application": context.manifest.application,
        "stopped": [{**run_data(each.run), "graceful": each.graceful} for each in stopped],
        "leaseOwners": owners,
        "scheduleDeleted": unscheduled,
    }
    if unscheduled:
        output.remark("deleted its schedule; `kinesis-efo emr submit` sets it again")
    output.answer(given.as_json, data, lambda: _stopped_view(stopped))
    if owners:
        who = ", ".join(map(readable, owners))
        raise CommandExit(
            output.ExitCode.FAILED,
            f"{who} still renews leases of {context.manifest.application}: stop it where it runs",
        )


def _chosen(context: Context, identifier: str | None) -> JobRun:
    if identifier is not None:
        return context.platform.run(identifier)
    known = context.platform.runs(context.name)
    if not known:
        raise PlatformError(f"{context.target} knows no run of {context.name}: EMR forgets them in time")
    return context.platform.run(known[0].id)


def run_data(run: JobRun) -> dict[str, Any]:
    """Convert a run to plain data, for JSON."""
    return {
        "id": run.id,
        "name": run.name,
        "state": run.state.value,
        "told": run.told,
        "created": run.created.isoformat(),
        "fingerprint": run.fingerprint,
        "logs": list(run.logs),
    }


def remark(run: JobRun) -> None:
    """Print a run's ID and state on stderr."""
    output.remark(f"{run.id} {run.told}")


def _runs_view(runs: Sequence[JobRun], title: str) -> RenderableType:
    rows = [
        (
            run.id,
            run.state.value,
            run.told,
            f"{run.created:%Y-%m-%d %H:%M:%S}",
            output.text("\n".join(run.logs), keep="\n"),
        )
        for run in runs
    ]
    return output.table(["run", "state", "AWS says", "submitted", "logs"], rows, title)


async def _stop(context: Context, clock: Clock, given: Stop) -> tuple[list[StopResult], list[str]]:
    live = context.platform.live(context.name)
    stopped = [
        await stop_run(
            context.platform, run, clock, remark,
            grace=given.grace, mark=lambda uri: context.mark(uri, given.artifacts),
        )
        for run in live
    ]  # fmt: skip
    if not stopped:
        output.remark(f"nothing runs on {context.target} for {context.manifest.application}")
    seconds = lease_timeout(context.deployment.arguments if context.deployment else ())
    async with context.leases() as leases:
        return stopped, sorted(await until_free(leases, clock, seconds))


def _stopped_view(stopped: Sequence[StopResult]) -> RenderableType:
    rows = [(each.run.id, "by itself" if each.graceful else "by EMR", each.run.told) for each in stopped]
    return output.table(["run", "ended", "AWS says"], rows)
