"""EventBridge Scheduler schedules, which regularly start applications' jobs on EMR Serverless.

Terraform declares the schedule group and the role. The schedules themselves are created when a job is submitted, because they contain
the location of the job's archive.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.aws_errors import Cause, cause_of, code_of
from kinesis_efo.errors import PlatformError

EXECUTION_ID: Final = "<aws.scheduler.execution-id>"
"""Placeholder that EventBridge Scheduler replaces with a new ID for each invocation."""
# Retry for at most five minutes; after that, the next run on the schedule takes over.
_RETRY: Final = {"MaximumRetryAttempts": 5, "MaximumEventAgeInSeconds": 300}


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of an application's job.

    `name` is the application's name. `expression` is, for example, `rate(15 minutes)`, or `cron(0 6 * * ? *)` in `time_zone`.
    """

    group: str
    name: str
    expression: str
    time_zone: str
    role_arn: str

    def request(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """Create the request that creates or updates the schedule. `start` is the StartJobRun input."""
        partition = self.role_arn.split(":")[1]
        return {
            "GroupName": self.group,
            "Name": self.name,
            "ScheduleExpression": self.expression,
            "ScheduleExpressionTimezone": self.time_zone,
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "State": "ENABLED",
            "Target": {
                "Arn": f"arn:{partition}:scheduler:::aws-sdk:emrserverless:startJobRun",
                "RoleArn": self.role_arn,
                "Input": json.dumps(start, sort_keys=True, separators=(",", ":")),
                "RetryPolicy": _RETRY,
            },
        }


class Change(StrEnum):
    """How `Schedules.put` changed a schedule."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


class Schedules:
    """Access to EventBridge Scheduler. Every method raises `PlatformError` if Scheduler rejects a call or cannot be reached."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, schedule: Schedule, start: Mapping[str, Any]) -> Change:
        """Create a schedule, or update it if it differs. `start` is the StartJobRun input."""
        wanted = schedule.request(start)
        with _refusals("set", schedule.group, schedule.name):
            found = self._find(schedule.group, schedule.name)
            if found is None:
                self._client.create_schedule(**wanted)
                return Change.CREATED
            if all(found.get(key) == value for key, value in wanted.items()):
                return Change.UNCHANGED
            self._client.update_schedule(**wanted)
            return Change.UPDATED

    def remove(self, group: str, name: str) -> bool:
        """Delete a schedule; returns whether there was one."""
        with _refusals("delete", group, name):
            if self._find(group, name) is None:
                return False
            self._client.delete_schedule(GroupName=group, Name=name)
            return True

    def _find(self, group: str, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._client.get_schedule(GroupName=group, Name=name)
        except ClientError as error:
            if code_of(error) == "ResourceNotFoundException":
                return None
            raise
        return found


@contextmanager
def _refusals(action: str, group: str, name: str) -> Iterator[None]:
    """Convert the SDK's errors to `PlatformError`."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        hint = ""
        if isinstance(error, ClientError) and cause_of(error) is Cause.DENIED:
            hint = "; the caller needs the permission that AWS names, and iam:PassRole for the role of schedules"
        elif isinstance(error, ClientError) and code_of(error) == "ResourceNotFoundException":
            hint = "; deploy the infrastructure, which declares the group"
        raise PlatformError(f"cannot {action} schedule {name} in group {group}: {error}{hint}") from error
