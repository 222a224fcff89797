"""Waits until a run has started, and stops runs: first gracefully, then by force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kinesis_efo.clock import Clock
from kinesis_efo.errors import RunFailedError, StillRunningError
from kinesis_efo_tools.emr.platform import Platform
from kinesis_efo_tools.emr.target import JobRun, JobRunState

Report: TypeAlias = Callable[[JobRun], None]
"""Called with a run whenever EMR's description of the run's state changes."""
_FIRST_INTERVAL, _INTERVAL = 1.0, 5.0  # seconds between polls, at first and later
_FORCED: Final = 300.0  # how many seconds to wait until EMR has ended a run by force


@dataclass(frozen=True, slots=True)
class StopResult:
    """The result of stopping a run. `graceful` is whether the run ended by itself, rather than by force."""

    run: JobRun
    graceful: bool


async def until_running(platform: Platform, identifier: str, clock: Clock, report: Report, patience: float) -> JobRun:
    """Wait until a run has started.

    After `patience` seconds, returns the run even if it has not started. Raises RunFailedError if it failed or was stopped; the message
    contains the location of its logs.
    """
    run = await _until(platform, identifier, clock, report, patience, lambda run: run.state is not JobRunState.WAITING)
    if run.state in (JobRunState.FAILED, JobRunState.STOPPED):
        logs = " and ".join(run.logs) or "EMR's console"
        raise RunFailedError(f"run {run.id} of {run.name} on {platform.target} ended: {run.told}. Logs: {logs}")
    return run


async def stop(
    platform: Platform, run: JobRun, clock: Clock, report: Report, *, grace: int, mark: Callable[[str], bool]
) -> StopResult:
    """Stop a run: it finishes its micro-batch and releases its leases. If this takes longer than `grace` seconds, EMR ends it by force.

    Args:
        grace: With 0, EMR ends the run immediately.
        mark: Writes the stop marker to an S3 URI. Returns False if it must not write to this URI; EMR then ends the run immediately.

    Raises StillRunningError if EMR does not end the run.
    """
    if grace and run.state is not JobRunState.WAITING and (not run.marker or mark(run.marker)):
        began = clock.monotonic()
        if not run.marker:
            platform.cancel(run, grace)
        run = await _until(platform, run.id, clock, report, grace + _INTERVAL, lambda run: run.state.ended)
        if run.state.ended:
            # A run that ends after the grace period may have been ended by force, so it does not count as graceful.
            return StopResult(run, graceful=clock.monotonic() - began < grace)
    platform.cancel(run, 0)
    run = await _until(platform, run.id, clock, report, _FORCED, lambda run: run.state.ended)
    if not run.state.ended:
        raise StillRunningError(
            f"run {run.id} of {run.name} on {platform.target} is still there: {run.told}; end it in EMR's console"
        )
    return StopResult(run, graceful=False)


async def _until(
    platform: Platform, identifier: str, clock: Clock, report: Report, patience: float, done: Callable[[JobRun], bool]
) -> JobRun:
    began = clock.monotonic()
    reported = None
    while True:
        run = platform.run(identifier)
        if run.told != reported:
            report(run)
            reported = run.told
        waited = clock.monotonic() - began
        if done(run) or waited >= patience:
            return run
        await clock.sleep(min(max(_FIRST_INTERVAL, waited / 4), _INTERVAL, patience - waited))
