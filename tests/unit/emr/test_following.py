"""Runs that are waited for and stopped, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kinesis_efo.errors import RunFailedError, StillRunningError
from kinesis_efo_tools.emr.following import StopResult, stop, until_running
from kinesis_efo_tools.emr.platform import Platform
from kinesis_efo_tools.emr.target import JobRun, JobRunState, Target, TargetKind
from tests.support.messages import raises
from tests.support.virtual_time import LoopClock

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
RUN = JobRun("r1", "kinesis-efo-dev-lake", JobRunState.RUNNING, "RUNNING", BEGAN, logs=["s3://logs/r1/"])
MARKER = "s3://b/stops/1"


class Scripted(Platform):
    """A run whose state is a function of the time, and of when it was cancelled and asked to stop."""

    def __init__(self, state: Callable[[Scripted], JobRunState], marker: str = "") -> None:
        super().__init__(Target(TargetKind.EKS, "a"), None)
        self.began = LoopClock().monotonic()
        self.cancelled: list[tuple[float, int]] = []
        self.marked: list[tuple[float, str]] = []
        self._state, self._marker = state, marker

    @property
    def now(self) -> float:
        return LoopClock().monotonic() - self.began

    def mark(self, uri: str) -> bool:
        if uri.startswith("s3://foreign/"):
            return False
        self.marked.append((self.now, uri))
        return True

    def run(self, identifier: str) -> JobRun:
        assert identifier == RUN.id
        state = self._state(self)
        return replace(RUN, state=state, told=state.value.upper(), marker=self._marker)

    def cancel(self, run: JobRun, grace: int) -> None:
        self.cancelled.append((self.now, grace))

    def _unused(self, *_: object, **__: object) -> Any:
        raise NotImplementedError

    site = request = submit = runs = _unused


async def _stopped(platform: Scripted, grace: int, told: list[str] | None = None) -> StopResult:
    report = (lambda _: None) if told is None else lambda run: told.append(run.told)
    return await stop(platform, platform.run(RUN.id), LoopClock(), report, grace=grace, mark=platform.mark)


async def test_run_is_followed_until_it_runs() -> None:
    platform = Scripted(lambda self: JobRunState.RUNNING if self.now >= 60 else JobRunState.WAITING)
    told: list[str] = []
    found = await until_running(platform, RUN.id, LoopClock(), lambda run: told.append(run.told), 900)
    assert (found.state, told) == (JobRunState.RUNNING, ["WAITING", "RUNNING"])
    assert 60 <= platform.now <= 65
    waits = Scripted(lambda _: JobRunState.WAITING)
    assert (await until_running(waits, RUN.id, LoopClock(), lambda _: None, 30)).state is JobRunState.WAITING
    assert waits.now == pytest.approx(30), "it is left waiting"


@pytest.mark.parametrize("state", [JobRunState.FAILED, JobRunState.STOPPED])
async def test_run_that_ends_names_its_logs(state: JobRunState) -> None:
    platform = Scripted(lambda self: state if self.now >= 5 else JobRunState.WAITING)
    said = f"run r1 of kinesis-efo-dev-lake on eks:a ended: {state.value.upper()}. Logs: s3://logs/r1/"
    with raises(RunFailedError, said):
        await until_running(platform, RUN.id, LoopClock(), lambda _: None, 900)


async def test_job_that_heeds_its_marker_ends_by_itself() -> None:
    def state(self: Scripted) -> JobRunState:
        return JobRunState.SUCCEEDED if self.marked and self.now >= self.marked[0][0] + 40 else JobRunState.RUNNING

    heeds = Scripted(state, MARKER)
    told: list[str] = []
    stopped = await _stopped(heeds, 600, told)
    assert (stopped.graceful, stopped.run.state) == (True, JobRunState.SUCCEEDED)
    assert heeds.marked == [(0, MARKER)]
    assert (heeds.cancelled, told) == ([], ["RUNNING", "SUCCEEDED"])


@pytest.mark.parametrize(("seconds", "graceful"), [(20, True), (121, False)])
async def test_run_without_marker_is_ended_by_emr(seconds: float, graceful: bool) -> None:
    ends = Scripted(lambda self: JobRunState.STOPPED if self.cancelled and self.now >= seconds else JobRunState.RUNNING)
    assert (await _stopped(ends, 120)).graceful is graceful
    assert ends.cancelled[0] == (0, 120)


async def test_job_that_ignores_its_marker_is_ended() -> None:
    deaf = Scripted(lambda self: JobRunState.STOPPED if self.cancelled else JobRunState.RUNNING, MARKER)
    assert not (await _stopped(deaf, 60)).graceful
    assert [(pytest.approx(65, abs=5), 0)] == deaf.cancelled


@pytest.mark.parametrize(
    ("grace", "state", "marker"),
    [
        (0, JobRunState.RUNNING, MARKER),
        (600, JobRunState.WAITING, MARKER),
        (600, JobRunState.RUNNING, "s3://foreign/stops/1"),
    ],
)
async def test_run_without_grace_or_own_marker_ends_at_once(grace: int, state: JobRunState, marker: str) -> None:
    platform = Scripted(lambda self: JobRunState.STOPPED if self.cancelled else state, marker)
    assert not (await _stopped(platform, grace)).graceful
    assert (platform.marked, platform.cancelled) == ([], [(0, 0)])


async def test_run_that_cannot_be_ended_is_an_error() -> None:
    with raises(
        StillRunningError, "run r1 of kinesis-efo-dev-lake on eks:a is still there: RUNNING; end it in EMR's console"
    ):
        await _stopped(Scripted(lambda _: JobRunState.RUNNING), 0)
