"""``kinesis-efo emr stop``: ends an application's runs, so that none of them reads any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rich.console import RenderableType

from kinesis_efo.cli import output
from kinesis_efo.cli.commands.emr import Stop
from kinesis_efo.cli.emr.context import Context
from kinesis_efo.cli.emr.runs import remark, run_data
from kinesis_efo.cli.failing import Ended
from kinesis_efo.clock import Clock, SystemClock
from kinesis_efo.emr.coordination import until_free
from kinesis_efo.emr.following import Stopped
from kinesis_efo.emr.following import stop as stop_run
from kinesis_efo.emr.job import lease_timeout
from kinesis_efo.leases.owner import readable


def stop(given: Stop) -> None:
    """Carry out the command."""
    with Context.open(given) as context:
        # First, or it might start another run.
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
        raise Ended(
            output.ExitCode.FAILED,
            f"{who} still renews leases of {context.manifest.application}: stop it where it runs",
        )


async def _stop(context: Context, clock: Clock, given: Stop) -> tuple[list[Stopped], list[str]]:
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


def _stopped_view(stopped: Sequence[Stopped]) -> RenderableType:
    rows = [(each.run.id, "by itself" if each.graceful else "by EMR", each.run.told) for each in stopped]
    return output.table(["run", "ended", "EMR says"], rows)
