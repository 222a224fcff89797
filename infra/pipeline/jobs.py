"""Keeps the declared jobs running: starts those that changed, one after the other, each until it is healthy, and stops at the first
that is not.

What changed is decided by `kinesis-efo emr submit --if-changed`: each run carries a fingerprint of its archive, program, arguments,
settings and of what its manifest says. Health is looked at whether or not a job was started: a pipeline that is run again after a
failure must not call it a success. The library is used through its command line only, as by any other CI step.
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

from infra import names
from infra.errors import PipelineError, UnhealthyError
from infra.settings import Environment, Job

logger = logging.getLogger(__name__)

_OK, _BEHIND = 0, 4
"""Exit codes of `kinesis-efo lag`; see docs/command-line.md."""
_READ = ("reading", "ended", "waiting")
"""States of shards that need nobody, or have somebody."""
_LOOK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said.

    Attributes:
        code: Its exit code.
        data: What it printed as JSON; None where that is none.
    """

    code: int
    data: Any


class Runner(Protocol):
    """Runs `kinesis-efo`."""

    def __call__(self, *arguments: str) -> Answer:
        """Run a command with `--json`; what it remarks goes to the log."""


class Time(Protocol):
    """A clock that only grows, and a way to wait."""

    def now(self) -> float:
        """Seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemTime:
    """The machine's."""

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Commands:
    """`kinesis-efo` of this environment of Python."""

    def __call__(self, *arguments: str) -> Answer:
        """Run a command with `--json`; what it remarks goes to the log."""
        command = [str(Path(sys.executable).with_name("kinesis-efo")), *arguments, "--json"]
        logger.info("$ kinesis-efo %s", " ".join(arguments))
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, stdin=subprocess.DEVNULL)
        try:
            data = json.loads(ran.stdout)
        except ValueError:
            data = None
        return Answer(ran.returncode, data)


def keep_running(environment: Environment, project: Path, run: Runner, clock: Time, patience: float) -> None:
    """Start the jobs of an environment that changed, and see each of them healthy before the next one is touched.

    Args:
        environment: The environment; its infrastructure is deployed.
        project: The project that is packed; programs are relative to it.
        run: Runs `kinesis-efo`.
        clock: To wait with.
        patience: Seconds that a job has to catch up.

    Raises:
        PipelineError: A job was refused; those behind it are as they were.
        UnhealthyError: A job ended, or did not catch up in time.
    """
    if not environment.jobs:
        logger.info("%s declares no jobs", environment.environment)
        return
    for job in environment.jobs:
        settings = environment.applications[job.application]
        name = names.application_name(job.application, settings)
        _submit(environment, name, project, run)
        _until_healthy(environment, job, name, run, clock, patience)


def _submit(environment: Environment, name: str, project: Path, run: Runner) -> None:
    where = ("--environment", environment.environment, "--application", name, "--region", environment.region)
    answer = run("emr", "submit", *where, "--project", str(project), "--if-changed")
    if answer.code != _OK:
        raise PipelineError(
            f"{name} was not started in {environment.environment} (exit code {answer.code}; its message is above); jobs behind it "
            "are as they were"
        )
    started = isinstance(answer.data, dict) and answer.data.get("submitted")
    logger.info("%s: %s", name, "started" if started else "runs as it is declared already")


def _until_healthy(environment: Environment, job: Job, name: str, run: Runner, clock: Time, patience: float) -> None:
    """Wait until every shard is read, and none is further behind than the alarm allows.

    A job that runs now and then is healthy once it was started.
    """
    settings = environment.applications[job.application]
    if not settings.continuous:
        return
    threshold = settings.lag_threshold_seconds
    where = ("--environment", environment.environment, "--application", name, "--region", environment.region)
    look = ["--manifest", f"ssm://{names.parameter_name(environment, job.application)}", "--region", environment.region]
    # Who renews its leases seldom must be watched for longer to be seen alive.
    look += [part for timeout in _lease_timeout(job.arguments) for part in ("--lease-timeout", timeout)]
    deadline = clock.now() + patience
    while True:
        if run("emr", "status", *where).code != _OK:
            raise UnhealthyError(f"{name} does not run any more: see its logs, where `kinesis-efo emr status` says")
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
                f"{name} still {why} after {patience:g} s; jobs behind it are as they were. It goes on running: see "
                "docs/runbook.md, or deploy the commit before"
            )
        clock.sleep(_LOOK_SECONDS)


def _lease_timeout(arguments: Sequence[str]) -> Sequence[str]:
    """The lease timeout that a job is given, if it is."""
    given = [each.partition("=")[2] for each in arguments if each.startswith("leaseTimeout=")]
    return given[-1:]


def _not_read(data: Any) -> list[str]:
    """Shards that nobody reads, although somebody should: a job that does nothing is not behind on an idle stream."""
    shards = [shard for application in data["applications"] for shard in application["shards"]]
    if not shards:
        return ["any shard"]
    return [f"{shard['stream']}/{shard['shardId']}" for shard in shards if shard["state"] not in _READ]
