"""The two documents that the library reads: the manifest of an application, and the description of its jobs.

Values may be CDKTF tokens or literal. The library reads exactly these keys: change both sides together.
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
    """What the schedules of an environment's jobs are made with.

    Attributes:
        group: Name of their group.
        role_arn: The role that starts the jobs.
    """

    group: str
    role_arn: str


def manifest(
    environment: Environment, key: str, *, table_arn: str, table_name: str, streams: Mapping[str, StreamRef]
) -> dict[str, Any]:
    """The manifest of an application."""
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
    """How jobs of an application are submitted, as `kinesis-efo emr submit` reads it.

    Without `schedules`, nothing is said of when they run.
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
        # The group is known to jobs without a schedule, too: they may have had one, which is to be deleted then.
        described["scheduleGroup"] = schedules.group
        if job and job.schedule:
            described |= {"schedule": job.schedule, "timeZone": job.time_zone, "scheduleRoleArn": schedules.role_arn}
    # CDKTF leaves out nulls; documents that are written without it must be the same.
    return {name: value for name, value in described.items() if value is not None}


def runtime_role(access: Access, role_arn: str | None) -> str | None:
    """The role that a job is submitted with; None where it has its cluster's role, or no role is declared."""
    return None if isinstance(access, EmrEc2 | PolicyOnly) else role_arn
