"""EMR Serverless: runs a job as a streaming job run, which EMR restarts when it fails (API reference, StartJobRun)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kinesis_efo_tools.emr.job import FINGERPRINT_SETTING, SCHEDULED_SETTING, Job, read_settings_text
from kinesis_efo_tools.emr.platform import STATES, Platform, command, newest_first, told
from kinesis_efo_tools.emr.schedules import EXECUTION_ID
from kinesis_efo_tools.emr.target import JobRun, Site

_FAILED_ATTEMPTS_PER_HOUR: Final = 5  # EMR does not restart a run after more; 1 to 10 are allowed ("Job resiliency")
_GRACE: Final = (15, 1800)  # minimum and maximum seconds ("Job cancellation with grace period")


class Serverless(Platform):
    """Runs jobs in an EMR Serverless application."""

    def site(self) -> Site:
        with self.refusals("look at the EMR Serverless application"):
            application = self._client.get_application(applicationId=self.target.id)["application"]
        faults = []
        if application["state"] in ("STOPPING", "TERMINATED"):
            remedy = "try again once it has stopped" if application["state"] == "STOPPING" else "deploy the environment"
            faults.append(f"EMR Serverless application {self.target.id} is {application['state']}: {remedy}")
        if application["type"].upper() != "SPARK":
            faults.append(
                f"EMR Serverless application {self.target.id} runs {application['type']}, not Spark: give one of Spark as --target"
            )
        architecture = application.get("architecture", "X86_64").lower()
        return Site(application["releaseLabel"], architecture=architecture, faults=faults)

    def request(self, job: Job) -> dict[str, Any]:
        request: dict[str, Any] = {
            "applicationId": self.target.id,
            "clientToken": job.token,
            "executionRoleArn": job.role_arn,
            "name": job.name,
            "mode": "STREAMING",
            "retryPolicy": {"maxFailedAttemptsPerHour": _FAILED_ATTEMPTS_PER_HOUR},
            "jobDriver": {
                "sparkSubmit": {
                    "entryPoint": job.program,
                    "entryPointArguments": list(job.arguments),
                    "sparkSubmitParameters": job.spark_submit_text(),
                }
            },
        }
        if job.tags:
            request["tags"] = dict(job.tags)
        overrides = job.spark_defaults()
        if job.logs:
            key = {"encryptionKeyArn": job.logs_key_arn} if job.logs_key_arn else {}
            overrides["monitoringConfiguration"] = {"s3MonitoringConfiguration": {"logUri": job.logs, **key}}
        if overrides:
            request["configurationOverrides"] = overrides
        return request

    def scheduled(self, job: Job) -> dict[str, Any]:
        """Create the request that submits a job for EventBridge Scheduler, which sets a new client token for each run."""
        return {**self.parameters(job), "ClientToken": EXECUTION_ID}

    def submit(self, job: Job) -> str:
        with self.refusals("start the job run"):
            return str(self._client.start_job_run(**self.request(job))["jobRunId"])

    def run(self, identifier: str) -> JobRun:
        with self.refusals("look at the job run"):
            answer = self._client.get_job_run(applicationId=self.target.id, jobRunId=identifier)["jobRun"]
        driver = answer["jobDriver"].get("sparkSubmit", {})
        settings = read_settings_text(driver.get("sparkSubmitParameters", ""))
        monitoring = answer.get("configurationOverrides", {}).get("monitoringConfiguration", {})
        uri = monitoring.get("s3MonitoringConfiguration", {}).get("logUri")
        # The directory has one subdirectory per attempt ("Logging for EMR Serverless").
        logs = [f"{uri.rstrip('/')}/applications/{self.target.id}/jobs/{identifier}/"] if uri else []
        dashboard = f"--application-id {self.target.id} --job-run-id {identifier}"
        return JobRun(
            identifier,
            answer.get("name", ""),
            STATES[answer["state"]],
            told(answer["state"], answer.get("stateDetails")),
            answer["createdAt"],
            settings.get(FINGERPRINT_SETTING, ""),
            logs=[*logs, f"aws emr-serverless get-dashboard-for-job-run {dashboard}"],
            scheduled=SCHEDULED_SETTING in settings,
            command=command(answer["executionRole"], answer["jobDriver"], answer.get("configurationOverrides")),
        )

    def runs(self, name: str) -> Sequence[JobRun]:
        with self.refusals("list the job runs"):
            pages = self._client.get_paginator("list_job_runs").paginate(applicationId=self.target.id, mode="STREAMING")
            found = [each for page in pages for each in page["jobRuns"] if each.get("name") == name]
        return newest_first(
            [
                JobRun(
                    each["id"],
                    name,
                    STATES[each["state"]],
                    told(each["state"], each.get("stateDetails")),
                    each["createdAt"],
                )
                for each in found
            ]
        )

    def live(self, name: str) -> Sequence[JobRun]:
        """List the runs with a name that have not ended. Looks up each run, because the list lacks some fields."""
        return [self.run(run.id) for run in super().live(name)]

    def cancel(self, run: JobRun, grace: int) -> None:
        """Cancel a run: the driver receives SIGTERM and has `grace` seconds (15 to 1,800, or 0) to finish its micro-batch."""
        seconds = min(max(grace, _GRACE[0]), _GRACE[1]) if grace else 0
        with self.refusals("cancel the job run"):
            self._client.cancel_job_run(
                applicationId=self.target.id, jobRunId=run.id, shutdownGracePeriodInSeconds=seconds
            )
