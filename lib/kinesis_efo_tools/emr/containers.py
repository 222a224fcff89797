"""EMR on EKS: runs a job in Kubernetes pods (EMR on EKS API reference, StartJobRun).

Kubernetes gives a pod only half a minute to end, so a graceful stop is requested with a stop marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kinesis_efo_tools.emr.job import FINGERPRINT_SETTING, MARKER_SETTING, Job, read_settings_text
from kinesis_efo_tools.emr.platform import STATES, Platform, command, newest_first, told
from kinesis_efo_tools.emr.target import JobRun, Site

_ATTEMPTS: Final = 100  # attempts to run the driver before EMR considers the run failed


class Containers(Platform):
    """Runs jobs on an EMR on EKS virtual cluster."""

    def site(self) -> Site:
        with self.refusals("look at the virtual cluster"):
            cluster = self._client.describe_virtual_cluster(id=self.target.id)["virtualCluster"]
        state = cluster["state"]
        if state == "RUNNING":
            return Site("")
        return Site("", faults=[f"virtual cluster {self.target.id} is {state}: give a running one as --target"])

    def request(self, job: Job) -> dict[str, Any]:
        monitoring: dict[str, Any] = {
            "persistentAppUI": "ENABLED",
            "containerLogRotationConfiguration": {"rotationSize": "100MB", "maxFilesToKeep": 10},
        }
        if job.logs:
            monitoring["s3MonitoringConfiguration"] = {"logUri": job.logs}
        return {
            "virtualClusterId": self.target.id,
            "clientToken": job.token,
            "executionRoleArn": job.role_arn,
            "name": job.name,
            "releaseLabel": job.release_label,
            "retryPolicyConfiguration": {"maxAttempts": _ATTEMPTS},
            "jobDriver": {
                "sparkSubmitJobDriver": {
                    "entryPoint": job.program,
                    "entryPointArguments": list(job.arguments),
                    "sparkSubmitParameters": job.spark_submit_text(),
                }
            },
            "configurationOverrides": {**job.spark_defaults(), "monitoringConfiguration": monitoring},
        }

    def submit(self, job: Job) -> str:
        with self.refusals("start the job run"):
            return str(self._client.start_job_run(**self.request(job))["id"])

    def run(self, identifier: str) -> JobRun:
        with self.refusals("look at the job run"):
            answer = self._client.describe_job_run(virtualClusterId=self.target.id, id=identifier)["jobRun"]
        return self._read(answer)

    def runs(self, name: str) -> Sequence[JobRun]:
        with self.refusals("list the job runs"):
            pages = self._client.get_paginator("list_job_runs").paginate(virtualClusterId=self.target.id, name=name)
            return newest_first([self._read(each) for page in pages for each in page["jobRuns"]])

    def cancel(self, run: JobRun, grace: int) -> None:  # noqa: ARG002 (EMR on EKS has no grace)
        with self.refusals("cancel the job run"):
            self._client.cancel_job_run(virtualClusterId=self.target.id, id=run.id)

    def _read(self, answer: dict[str, Any]) -> JobRun:
        driver = answer.get("jobDriver", {}).get("sparkSubmitJobDriver", {})
        settings = read_settings_text(driver.get("sparkSubmitParameters", ""))
        monitoring = answer.get("configurationOverrides", {}).get("monitoringConfiguration", {})
        uri = monitoring.get("s3MonitoringConfiguration", {}).get("logUri")
        return JobRun(
            answer["id"],
            answer.get("name", ""),
            STATES[answer["state"]],
            told(answer["state"], answer.get("failureReason"), answer.get("stateDetails")),
            answer["createdAt"],
            settings.get(FINGERPRINT_SETTING, ""),
            settings.get(MARKER_SETTING, ""),
            logs=[f"{uri.rstrip('/')}/{self.target.id}/jobs/{answer['id']}/"] if uri else [],
            command=command(
                answer.get("executionRoleArn"), answer.get("jobDriver", {}), answer.get("configurationOverrides")
            ),
        )
