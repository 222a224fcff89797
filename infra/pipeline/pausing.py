"""Stops an EMR Serverless application and its jobs before a plan changes settings that can be changed only while it is stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from infra.errors import PipelineError
from infra.pipeline.jobs import Runner, Time, which
from infra.settings.access import EmrServerless
from infra.settings.model import Environment
from infra.settings.names import application_name
from kinesis_efo_infra.pipeline.limits import Plan, applications_to_stop

logger = logging.getLogger(__name__)

_STOPPED = ("CREATED", "STOPPED", "TERMINATED")
_ENDED = ("SUCCESS", "FAILED", "CANCELLED")
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Prepares an environment for a plan: stops the EMR Serverless applications that the plan changes.

    Attributes:
        client: Creates a boto3 client of EMR Serverless for a region.
        run: Runs `kinesis-efo`.
        clock: Measures time, and waits.
        patience: Seconds that the application has to stop.
    """

    client: Callable[[str], Any]
    run: Runner
    clock: Time
    patience: float = 600

    def __call__(self, environment: Environment, plan: Plan) -> None:
        """Stop the applications that must not run while the plan is applied, and their jobs; `make jobs` starts them again.

        Raises:
            PipelineError: An application runs undeclared jobs, or something does not stop; nothing was applied.
        """
        for application in applications_to_stop(plan):
            emr = self.client(environment.region)
            try:
                if self._state(emr, application) not in _STOPPED:
                    self._stop(environment, emr, application)
            except ClientError as error:
                raise PipelineError(f"EMR Serverless application {application} cannot be stopped: {error}") from error

    def _stop(self, environment: Environment, emr: Any, application: str) -> None:
        jobs = list(self._jobs(environment, application))
        ours = {run: name for name, _, runs in jobs for run in runs}
        live = {run["id"]: run.get("name", "") for run in _all_runs(emr, application) if run["state"] not in _ENDED}
        others = [f"{run} ({name})" for run, name in live.items() if run not in ours]
        if others:
            raise PipelineError(
                f"the plan changes EMR Serverless application {application}, which must be stopped for that, and "
                f"{', '.join(others)} runs there, which this environment does not declare: stop it, and apply again"
            )
        # Stop scheduled jobs even if they have no run: a schedule could start a run, and thereby the application, in the meantime.
        waiting = {name for name, scheduled, _ in jobs if scheduled}
        for key in sorted(waiting | {ours[run] for run in live}):
            if (code := self.run("emr", "stop", *which(environment, key)).code) != 0:
                raise PipelineError(
                    f"{key} does not stop (exit code {code}; its message is above), so that nothing was applied; "
                    "`make jobs` starts what was stopped"
                )
        logger.info("stopping EMR Serverless application %s; `make jobs` starts its jobs again", application)
        emr.stop_application(applicationId=application)
        deadline = self.clock.now() + self.patience
        while (state := self._state(emr, application)) not in _STOPPED:
            if self.clock.now() >= deadline:
                raise PipelineError(
                    f"EMR Serverless application {application} is still {state} after {self.patience:g} s; nothing was "
                    "applied. Apply again, or run `make jobs`, which starts what was stopped"
                )
            self.clock.sleep(_LOOK_SECONDS)

    def _jobs(self, environment: Environment, application: str) -> Iterator[tuple[str, bool, list[str]]]:
        """For each of the environment's jobs on an EMR Serverless application, yield its name, whether it is scheduled, and its runs."""
        for job in environment.jobs:
            settings = environment.applications[job.application]
            if isinstance(settings.access, EmrServerless):
                name = application_name(job.application, settings)
                told = self.run("emr", "status", *which(environment, name)).data
                if isinstance(told, dict) and told.get("target") == f"serverless:{application}":
                    yield name, "schedule" in told, [str(run["id"]) for run in told["runs"]]

    def _state(self, emr: Any, application: str) -> str:
        return str(emr.get_application(applicationId=application)["application"]["state"])


def _all_runs(emr: Any, application: str) -> Iterator[Any]:
    for mode in ("BATCH", "STREAMING"):
        for page in emr.get_paginator("list_job_runs").paginate(applicationId=application, mode=mode):
            yield from page["jobRuns"]
