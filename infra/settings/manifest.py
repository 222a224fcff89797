"""The two documents that the library reads: the manifest of an application, and the description of its jobs.

Values are literal or CDKTF tokens. The library reads exactly these keys, so change both sides together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.settings.access import Access, EmrEc2, EmrServerless, PolicyOnly
from infra.settings.model import Environment
from infra.settings.names import LOGS, Names, application_name
from kinesis_efo_infra import document
from kinesis_efo_infra.document import StreamRef

DEPLOYMENT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What is needed to create schedules for an environment's jobs.

    Attributes:
        group: Name of the schedule group.
        role_arn: ARN of the role with which EventBridge Scheduler starts the jobs.
    """

    group: str
    role_arn: str


def manifest(
    environment: Environment, key: str, *, table_arn: str, table_name: str, streams: Mapping[str, StreamRef]
) -> dict[str, Any]:
    """Return the manifest of an application."""
    return document.manifest(
        application=application_name(key, environment.applications[key]),
        environment=Names(environment).qualified,
        region=environment.region,
        table_name=table_name,
        table_arn=table_arn,
        streams=streams,
    )


def deployment(
    environment: Environment,
    key: str,
    *,
    bucket: str,
    key_arn: str | None,
    target: str | None,
    role_arn: str | None,
    schedules: Scheduling | None = None,
) -> dict[str, Any]:
    """Return the description with which `kinesis-efo emr submit` submits an application's jobs.

    Without `schedules`, the description does not include the jobs' schedules.
    """
    names = Names(environment)
    emr, job = environment.emr, environment.job(key)
    assert emr is not None
    application = application_name(key, environment.applications[key])
    described = {
        "schemaVersion": DEPLOYMENT_VERSION,
        "application": application,
        "environment": names.qualified,
        "region": environment.region,
        "manifest": names.manifest_location(key),
        "target": target,
        "roleArn": role_arn,
        "artifacts": f"s3://{bucket}",
        "logs": f"s3://{bucket}/{LOGS}{application}",
        "logsKeyArn": key_arn,
        "releaseLabel": emr.release_label,
        "architecture": emr.architecture,
        "python": emr.python,
        "program": job.program if job else None,
        "arguments": names.job_arguments(job) if job else [],
        "spark": names.job_spark(job) if job else {},
    }
    if schedules and isinstance(environment.applications[key].access, EmrServerless):
        # Jobs without a schedule need the group, too: if they had a schedule before, it must be deleted from the group.
        described["scheduleGroup"] = schedules.group
        if job and job.schedule:
            described |= {"schedule": job.schedule, "timeZone": job.time_zone, "scheduleRoleArn": schedules.role_arn}
    # CDKTF omits nulls, so omit them here as well: the literal documents must have the same length.
    return {name: value for name, value in described.items() if value is not None}


def runtime_role(access: Access, role_arn: str | None) -> str | None:
    """Return the role that a job is submitted with; None if it uses its cluster's role, or no role is declared."""
    return None if isinstance(access, EmrEc2 | PolicyOnly) else role_arn
