"""EMR on EC2: runs a job as a step of a running cluster, with the driver in YARN (EMR API reference, AddJobFlowSteps).

Canceling a step ends `spark-submit`, but not the driver (EMR documentation, "Cancel steps"). Therefore, a stop is requested with a stop
marker; if the job does not stop, a second step makes YARN kill it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from kinesis_efo_tools.emr.job import FINGERPRINT_SETTING, MARKER_SETTING, Job, read_settings
from kinesis_efo_tools.emr.platform import STATES, Platform, command, newest_first, told
from kinesis_efo_tools.emr.target import JobRun, JobRunState, Site

_READY: Final = ("RUNNING", "WAITING")
_TAG: Final = "spark.yarn.tags"
# Command that kills the YARN applications with a given tag and name. `yarn application -list` prints ids and names in columns 1 and 2.
_KILL: Final = (
    "yarn application -list -appTags {tag} -appStates SUBMITTED,ACCEPTED,RUNNING 2>/dev/null"
    " | awk -v name={name} '$1 ~ /^application_/ && $2 == name {{print $1}}' | xargs -r -n 1 yarn application -kill"
)


class Clusters(Platform):
    """Runs jobs as steps of a running EMR cluster on EC2."""

    operation = "AddJobFlowSteps"
    _logs: str | None = None

    def site(self) -> Site:
        with self.refusals("look at the cluster"):
            cluster = self._client.describe_cluster(ClusterId=self.target.id)["Cluster"]
        state = cluster["Status"]["State"]
        faults = [] if state in _READY else [f"cluster {self.target.id} is {state}: start one, and give it as --target"]
        versions = {each["Name"]: each.get("Version", "") for each in cluster.get("Applications", [])}
        if versions and "Spark" not in versions:
            faults.append(f"cluster {self.target.id} has {', '.join(versions)}, but not Spark: create it with Spark")
        return Site(
            cluster.get("ReleaseLabel", ""),
            spark=versions.get("Spark", ""),
            logs=cluster.get("LogUri", ""),
            faults=faults,
        )

    def request(self, job: Job) -> dict[str, Any]:
        step = {
            "Name": job.name,
            "ActionOnFailure": "CONTINUE",
            "HadoopJarStep": {
                "Jar": "command-runner.jar",
                "Args": [
                    "spark-submit",
                    "--deploy-mode",
                    "cluster",
                    "--name",
                    job.name,
                    *job.spark_submit(),
                    # Tag the YARN application, so that `cancel` finds the driver even after the step has ended.
                    "--conf",
                    f"{_TAG}={_tag(job.token)}",
                    job.program,
                    *job.arguments,
                ],
            },
        }
        role = {"ExecutionRoleArn": job.role_arn} if job.role_arn else {}
        return {"JobFlowId": self.target.id, "Steps": [step], **role}

    def same(self, run: JobRun, job: Job) -> bool:
        request = self.request(job)
        return run.command == command(request.get("ExecutionRoleArn"), request["Steps"][0]["HadoopJarStep"])

    def submit(self, job: Job) -> str:
        """Submit a job. Steps have no client token, so it is unknown whether a step was added if the call's response is lost."""
        with self.refusals("add the step"):
            return str(self._client.add_job_flow_steps(**self.request(job))["StepIds"][0])

    def run(self, identifier: str) -> JobRun:
        with self.refusals("look at the step"):
            step = self._client.describe_step(ClusterId=self.target.id, StepId=identifier)["Step"]
        return self._read(step)

    def runs(self, name: str) -> Sequence[JobRun]:
        with self.refusals("list the steps"):
            pages = self._client.get_paginator("list_steps").paginate(ClusterId=self.target.id)
            steps = [step for page in pages for step in page["Steps"] if step["Name"] == name]
        return newest_first([self._read(step) for step in steps])

    def live(self, name: str) -> Sequence[JobRun]:
        """List the runs with a name that have not ended. Looks up each step, because the list does not contain the steps' roles."""
        return [self.run(run.id) for run in super().live(name)]

    def cancel(self, run: JobRun, grace: int) -> None:  # noqa: ARG002 (a step has no grace: the driver is not its process)
        """Cancel a step. If the driver may be running, add a step that makes YARN kill it.

        On a shared cluster, every user can add steps with any name and arguments. The added step runs with the cluster's permissions, so
        it kills only applications that have the run's name and a tag in the format that `request` uses.
        """
        with self.refusals("look at the step"):
            step = self._client.describe_step(ClusterId=self.target.id, StepId=run.id)["Step"]
        with self.refusals("cancel the step"):
            self._client.cancel_steps(
                ClusterId=self.target.id, StepIds=[run.id], StepCancellationOption="SEND_INTERRUPT"
            )
        tag = read_settings(step["Config"]["Args"]).get(_TAG, "")
        if re.fullmatch(_tag("[0-9a-f]{32}"), tag) and run.state is not JobRunState.WAITING:
            with self.refusals("add the step that ends the driver"):
                self._client.add_job_flow_steps(JobFlowId=self.target.id, Steps=[_kill_step(run.name, tag)])

    def _read(self, step: dict[str, Any]) -> JobRun:
        if self._logs is None:
            self._logs = self.site().logs
        settings = read_settings(step["Config"]["Args"])
        status = step["Status"]
        failure = status.get("FailureDetails", {})
        # EMR still reports the location of a cluster's logs as s3n://.
        prefix = self._logs.replace("s3n://", "s3://").rstrip("/")
        return JobRun(
            step["Id"],
            step["Name"],
            STATES[status["State"]],
            told(
                status["State"],
                failure.get("Message"),
                failure.get("Reason"),
                status["StateChangeReason"].get("Message"),
            ),
            status["Timeline"]["CreationDateTime"],
            settings.get(FINGERPRINT_SETTING, ""),
            settings.get(MARKER_SETTING, ""),
            logs=[f"{prefix}/{self.target.id}/{part}/" for part in (f"steps/{step['Id']}", "containers")]
            if prefix
            else [],
            command=command(step.get("ExecutionRoleArn"), step["Config"]),
        )


def _tag(token: str) -> str:
    return f"kinesis-efo-{token}"


def _kill_step(name: str, tag: str) -> dict[str, Any]:
    kill = _KILL.format(tag=shlex.quote(tag), name=shlex.quote(name))
    return {
        "Name": f"end {name}",
        "ActionOnFailure": "CONTINUE",
        "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["bash", "-c", kill]},
    }
