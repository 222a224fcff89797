"""AWS Glue: runs a job as a run of an existing Glue job (AWS Glue API reference, StartJobRun).

StartJobRun has no client token; instead, a Glue job that allows one run at a time rejects a second start. Glue stops a run within seconds,
so a graceful stop is requested with a stop marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kinesis_efo.errors import SubmissionRefusedError, UsageError
from kinesis_efo_tools.emr.job import FINGERPRINT_SETTING, MARKER_SETTING, Job, read_settings
from kinesis_efo_tools.emr.platform import STATES, Platform, command, newest_first, told
from kinesis_efo_tools.emr.target import JobRun, Site

_COMMANDS: Final = ("gluestreaming", "glueetl")
PYTHON: Final = "3.13"
"""The Python version of Glue 6.0."""


class GlueJobs(Platform):
    """Submits jobs as runs of one Glue job. Glue runs have no names, so every run of this Glue job counts as a run of the application."""

    def site(self) -> Site:
        with self.refusals("look at the Glue job"):
            job = self._client.get_job(JobName=self.target.id)["Job"]
        faults = []
        if (kind := job["Command"]["Name"]) not in _COMMANDS:
            faults.append(f"Glue job {self.target.id} is of kind {kind}: give one of kind {' or '.join(_COMMANDS)}")
        if (most := job.get("ExecutionProperty", {}).get("MaxConcurrentRuns", 1)) != 1:
            faults.append(
                f"Glue job {self.target.id} allows {most} runs at a time, so two submissions could start two: set MaxConcurrentRuns to 1"
            )
        version = job.get("GlueVersion", "0.9")
        spark = "4.1" if int(version.partition(".")[0]) >= 6 else ""
        return Site(f"Glue {version}", spark=spark, architecture="x86_64", faults=faults)

    def request(self, job: Job) -> dict[str, Any]:
        settings = [f"{name}={value}" for name, value in sorted(job.spark.items())]
        arguments = {
            **_pairs(job.arguments),
            "--scriptLocation": job.program,
            "--additional-python-modules": job.archive,
            # Install only the packed wheels: they include all locked dependencies except PySpark, which Glue provides.
            "--python-modules-installer-option": "--no-index --no-deps",
        }
        # Glue accepts a single --conf argument, so the value contains all settings, separated by ` --conf `.
        return {"JobName": self.target.id, "Arguments": {**arguments, "--conf": " --conf ".join(settings)}}

    def same(self, run: JobRun, job: Job) -> bool:
        return run.command == command(None, self.request(job)["Arguments"])

    def submit(self, job: Job) -> str:
        with self.refusals("start the job run"):
            try:
                return str(self._client.start_job_run(**self.request(job))["JobRunId"])
            except self._client.exceptions.ConcurrentRunsExceededException:
                raise SubmissionRefusedError(
                    f"not submitted:\n  Glue job {self.target.id} runs already; stop it, or use --replace"
                ) from None

    def run(self, identifier: str) -> JobRun:
        with self.refusals("look at the job run"):
            return self._read(self._client.get_job_run(JobName=self.target.id, RunId=identifier)["JobRun"])

    def runs(self, name: str) -> Sequence[JobRun]:  # noqa: ARG002 (a run has no name but the job's)
        with self.refusals("list the job runs"):
            pages = self._client.get_paginator("get_job_runs").paginate(JobName=self.target.id)
            return newest_first([self._read(each) for page in pages for each in page["JobRuns"]])

    def cancel(self, run: JobRun, grace: int) -> None:  # noqa: ARG002 (Glue has no grace)
        with self.refusals("stop the job run"):
            self._client.batch_stop_job_run(JobName=self.target.id, JobRunIds=[run.id])

    def _read(self, answer: Mapping[str, Any]) -> JobRun:
        arguments = answer.get("Arguments", {})
        settings = read_settings(["--conf", *arguments.get("--conf", "").split()])
        return JobRun(
            answer["Id"],
            answer["JobName"],
            STATES[answer["JobRunState"]],
            told(answer["JobRunState"], answer.get("ErrorMessage"), answer.get("StateDetail")),
            answer["StartedOn"],
            settings.get(FINGERPRINT_SETTING, ""),
            settings.get(MARKER_SETTING, ""),
            logs=[f"aws logs tail /aws-glue/jobs/error --log-stream-names {answer['Id']}"],
            command=command(None, arguments),
        )


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Convert a program's arguments to the mapping of names to values that Glue requires.

    >>> _pairs(["--output", "s3://lake", "--trigger=1 minute", "--available-now"])
    {'--output': 's3://lake', '--trigger': '1 minute', '--available-now': ''}
    """
    pairs: dict[str, str] = {}
    waiting = ""
    for word in arguments:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if name in pairs:
                raise UsageError(f"{name} comes twice, and Glue passes each argument of a program once: give it once")
            pairs[name], waiting = value, "" if equals else name
        elif waiting:
            pairs[waiting], waiting = word, ""
        else:
            raise UsageError(
                f"{word!r} has no name, and Glue passes arguments of a program by name: give it as --name value"
            )
    return pairs
