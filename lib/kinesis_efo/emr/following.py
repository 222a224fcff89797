"""Watching a run until it runs, and stopping one: gracefully, within bounds, then by force. Relies on platforms and a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kinesis_efo.clock import Clock
from kinesis_efo.emr.platform import Platform
from kinesis_efo.emr.target import Run, State
from kinesis_efo.errors import RunFailedError, StillRunningError

Report: TypeAlias = Callable[[Run], None]
"""Told of a run whenever EMR's word for its state changes."""
_SOON, _OFTEN = 1.0, 5.0  # seconds between looks, at first and later
_FORCED: Final = 300.0  # seconds until EMR has ended what it was told to end at once


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a run ended.

    Attributes:
        run: The run.
        graceful: Whether it ended by itself after it was asked to.
    """

    run: Run
    graceful: bool


async def until_running(platform: Platform, identifier: str, clock: Clock, report: Report, patience: float) -> Run:
    """Wait until a run runs.

    Args:
        platform: Its target.
        identifier: The run.
        clock: Time.
        report: Told on the way.
        patience: Seconds to wait; then the run is returned as it is, waiting.

    Raises:
        RunFailedError: It ended instead, other than by succeeding; the message says where the logs are.
    """
    run = await _until(platform, identifier, clock, report, patience, lambda run: run.state is not State.WAITING)
    if run.state in (State.FAILED, State.STOPPED):
        logs = " and ".join(run.logs) or "EMR's console"
        raise RunFailedError(f"run {run.id} of {run.name} on {platform.target} ended: {run.told}. Logs: {logs}")
    return run


async def stop(
    platform: Platform, run: Run, clock: Clock, report: Report, *, grace: int, mark: Callable[[str], None]
) -> Stopped:
    """End a run: it finishes its micro-batch and releases its leases; what does not end in time is ended by EMR.

    Args:
        platform: Its target.
        run: A run that has not ended.
        clock: Time.
        report: Told on the way.
        grace: Seconds that it has; 0 ends it at once.
        mark: Writes the object at an S3 URI, which asks the job to stop.

    Raises:
        StillRunningError: EMR does not end it either.
    """
    if grace and run.state is not State.WAITING:
        began = clock.monotonic()
        if run.marker:
            mark(run.marker)
        else:
            platform.cancel(run, grace)
        run = await _until(platform, run.id, clock, report, grace + _OFTEN, lambda run: run.state.ended)
        if run.state.ended:
            # What EMR itself ended, it ended when the time was over.
            return Stopped(run, graceful=clock.monotonic() - began < grace)
    platform.cancel(run, 0)
    run = await _until(platform, run.id, clock, report, _FORCED, lambda run: run.state.ended)
    if not run.state.ended:
        raise StillRunningError(f"run {run.id} of {run.name} on {platform.target} is still there: {run.told}")
    return Stopped(run, graceful=False)


async def _until(
    platform: Platform, identifier: str, clock: Clock, report: Report, patience: float, done: Callable[[Run], bool]
) -> Run:
    began = clock.monotonic()
    told = None
    while True:
        run = platform.run(identifier)
        if run.told != told:
            report(run)
            told = run.told
        waited = clock.monotonic() - began
        if done(run) or waited >= patience:
            return run
        await clock.sleep(min(max(_SOON, waited / 4), _OFTEN, patience - waited))
