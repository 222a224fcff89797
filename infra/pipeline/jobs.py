"""Keeps the declared jobs running: starts those that changed, one by one, waits until each is healthy, and stops at the first that is not.

`kinesis-efo emr submit --if-changed` detects changes: each run has a fingerprint of what it was started with. Jobs that were not started
are checked as well: otherwise, rerunning the pipeline after a failure would report success.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from infra.errors import PipelineError, UnhealthyError
from infra.settings.model import Environment, Job
from infra.settings.names import Names, application_name

logger = logging.getLogger(__name__)

_OK, _BEHIND = 0, 4
"""Exit codes of `kinesis-efo lag`: success, and a lag above the limit; see docs/command-line.md."""
_READ = ("reading", "ended", "waiting")
"""States of shards that are being read, or do not have to be read at the moment."""
_LOOK_SECONDS = 15.0
PACKED = "packed"
"""Directory of the jobs' archives, beside the stacks: CI passes both on together, with one digest that covers both."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command.

    Attributes:
        code: Exit code of the command.
        data: Its output, parsed as JSON; None if the output is not JSON.
    """

    code: int
    data: Any


class Runner(Protocol):
    """Runs `kinesis-efo`."""

    def __call__(self, *arguments: str) -> Answer:
        """Run a command with `--json`; its standard error goes to the log."""


class Time(Protocol):
    """A monotonic clock that can wait."""

    def now(self) -> float:
        """The time, in seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemTime:
    """The machine's clock."""

    def now(self) -> float:
        """The time, in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Commands:
    """Runs the `kinesis-efo` that is installed beside this Python.

    Args:
        lag_seconds: Timeout of `kinesis-efo lag` in seconds. It limits how long this command has the credentials of the apply role.
    """

    def __init__(self, lag_seconds: float = 900) -> None:
        self._lag_seconds = lag_seconds

    def __call__(self, *arguments: str) -> Answer:
        """Run a command with `--json`; its standard error goes to the log.

        Raises:
            PipelineError: `kinesis-efo` is not installed beside this Python, or `kinesis-efo lag` timed out.
        """
        command = [str(Path(sys.executable).with_name("kinesis-efo")), *arguments, "--json"]
        logger.info("$ kinesis-efo %s", " ".join(arguments))
        try:
            ran = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=self._lag_seconds if arguments[:1] == ("lag",) else None,
            )
        except subprocess.TimeoutExpired:
            raise PipelineError(
                f"kinesis-efo lag has not ended within {self._lag_seconds:g} s, and was stopped; what answers it may be no run of this project"
            ) from None
        except OSError as error:
            raise PipelineError(
                f"kinesis-efo cannot be run: {error}; install this project for {sys.executable}: pip install '.[emr]'"
            ) from None
        try:
            data = json.loads(ran.stdout)
        except ValueError:
            data = None
        return Answer(ran.returncode, data)


def pack(environment: Environment, project: Path, packed: Path, run: Runner) -> None:
    """Pack the project for the jobs of an environment. Run this without credentials, because it runs the project's build backend.

    Args:
        environment: The environment.
        project: Directory of the project.
        packed: Directory for archives.
        run: Runs `kinesis-efo`.

    Raises:
        PipelineError: The project cannot be packed.
    """
    emr = environment.emr
    if emr is None or not environment.jobs or archives(environment, packed):
        return
    platform = ("--python", emr.python, "--architecture", emr.architecture)
    answer = run("emr", "package", "--project", str(project), "--out", str(packed), *platform)
    if answer.code != _OK:
        raise PipelineError(
            f"{project} was not packed for {environment.environment} (exit code {answer.code}; its message is above)"
        )


def archives(environment: Environment, packed: Path) -> list[Path]:
    """Return the archives that `pack` created for an environment: one, or none."""
    emr = environment.emr
    return sorted(packed.glob(f"environment-py{emr.python}-{emr.architecture}-*.tar.gz")) if emr else []


def keep_running(
    environment: Environment, project: Path, run: Runner, clock: Time, patience: float, packed: Path | None = None
) -> None:
    """Start the jobs of an environment that changed, one after the other. Wait until each job is healthy before starting the next one.

    Args:
        environment: The environment; its infrastructure is deployed.
        project: Directory of the project to pack; programs are relative to it.
        run: Runs `kinesis-efo`.
        clock: Measures time, and waits.
        patience: Seconds that each job has to catch up.
        packed: Directory with the project's archive; None to pack the project now.

    Raises:
        PipelineError: A job could not be submitted; the jobs after it were not started.
        UnhealthyError: A job ended, or did not catch up in time.
    """
    if not environment.jobs:
        logger.info("%s declares no jobs", environment.environment)
        return
    archive: Sequence[Path] = ()
    if packed is not None and len(archive := archives(environment, packed)) != 1:
        raise PipelineError(
            f"{packed} has {len(archive)} archives for the jobs of {environment.environment}, and one is needed, which `make synth "
            "PACKED=1` makes before there are credentials; nothing was started"
        )
    for job in environment.jobs:
        settings = environment.applications[job.application]
        name = application_name(job.application, settings)
        given = ["--project", str(project), *(part for each in archive for part in ("--archive", str(each)))]
        _submit(environment, job, name, given, run)
        _until_healthy(environment, job, name, run, clock, patience)


def which(environment: Environment, name: str) -> tuple[str, ...]:
    """Return the options with which `kinesis-efo emr` identifies an application."""
    return "--environment", Names(environment).qualified, "--application", name, "--region", environment.region


def _submit(environment: Environment, job: Job, name: str, project: Sequence[str], run: Runner) -> None:
    answer = run("emr", "submit", *which(environment, name), *project, "--if-changed")
    if answer.code != _OK:
        raise PipelineError(
            f"{name} was not started in {environment.environment} (exit code {answer.code}; its message is above); "
            "jobs after it were not touched"
        )
    if job.schedule is not None:
        logger.info("%s: runs at %s, %s", name, job.schedule, job.time_zone or "UTC")
        return
    started = isinstance(answer.data, dict) and answer.data.get("submitted")
    logger.info("%s: %s", name, "started" if started else "runs as it is declared already")


def _until_healthy(environment: Environment, job: Job, name: str, run: Runner, clock: Time, patience: float) -> None:
    """Wait until every shard is being read, with a lag of at most the alarm's threshold.

    A job that is not `continuous` is healthy as soon as it is started or scheduled.
    """
    settings = environment.applications[job.application]
    if not settings.continuous:
        return
    threshold = settings.lag_threshold_seconds
    look = ["--manifest", Names(environment).manifest_location(job.application), "--region", environment.region]
    # A job with a longer lease timeout renews its leases less often, so `lag` must wait longer for a renewal.
    look += [part for timeout in _lease_timeout(job.arguments) for part in ("--lease-timeout", timeout)]
    deadline = clock.now() + patience
    while True:
        if run("emr", "status", *which(environment, name)).code != _OK:
            raise UnhealthyError(f"{name} does not run any more; `kinesis-efo emr status` says where its logs are")
        lag = run("lag", *look, "--fail-above", f"{threshold}s")
        if lag.code not in (_OK, _BEHIND):
            raise UnhealthyError(
                f"how far {name} is behind cannot be told (exit code {lag.code}; its message is above)"
            )
        idle = _not_read(lag.data)
        if lag.code == _OK and not idle:
            logger.info("%s: every shard is read, at most %s s behind", name, threshold)
            return
        if clock.now() >= deadline:
            why = f"does not read {', '.join(idle)}" if idle else f"is more than {threshold} s behind"
            raise UnhealthyError(
                f"{name} still {why} after {patience:g} s; jobs after it were not touched. It goes on running: see "
                "docs/runbook.md, or deploy the commit before"
            )
        clock.sleep(_LOOK_SECONDS)


def _lease_timeout(arguments: Sequence[str]) -> Sequence[str]:
    """Return the lease timeout in a job's arguments; empty if there is none."""
    given = [each.partition("=")[2] for each in arguments if each.startswith("leaseTimeout=")]
    return given[-1:]


def _not_read(data: Any) -> list[str]:
    """Return the streams and shards that should be read but are not. On an idle stream, the lag does not reveal them."""
    shards = [shard for application in data["applications"] for shard in application["shards"]]
    if not shards:
        return ["any shard"]
    missing = [each["stream"] for application in data["applications"] for each in application.get("missing", ())]
    return missing + [f"{shard['stream']}/{shard['shardId']}" for shard in shards if shard["state"] not in _READ]
