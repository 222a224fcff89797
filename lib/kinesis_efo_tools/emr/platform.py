"""The common interface of EMR on EC2, EMR Serverless, EMR on EKS and Glue."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from kinesis_efo.aws_errors import Cause, cause_of, code_of
from kinesis_efo.errors import PlatformError
from kinesis_efo_tools.emr.job import MARKER_SETTING, Job
from kinesis_efo_tools.emr.target import JobRun, JobRunState, Site, Target


class Platform(ABC):
    """Access to a target through its API. Every method raises `PlatformError` if the API rejects a call or cannot be reached."""

    operation = "StartJobRun"
    """The API operation that submits a job."""

    def __init__(self, target: Target, client: Any) -> None:
        self.target = target
        self._client = client

    @abstractmethod
    def site(self) -> Site:
        """Get EMR's description of the target."""

    @abstractmethod
    def request(self, job: Job) -> dict[str, Any]:
        """Create the request that submits a job."""

    def parameters(self, job: Job) -> dict[str, Any]:
        """Like `request`, but in the form for Step Functions and EventBridge Scheduler, with capitalized parameter names."""
        shape = self._client.meta.service_model.operation_model(self.operation).input_shape
        capitalized: dict[str, Any] = _capitalized(self.request(job), shape)
        return capitalized

    def same(self, run: JobRun, job: Job) -> bool:
        """Whether a run executes exactly this job. Compares the command, because another job may have copied the name and fingerprint."""
        request = self.request(job)
        return run.command == command(
            request["executionRoleArn"], request["jobDriver"], request.get("configurationOverrides")
        )

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Submit a job; returns the id of its run."""

    @abstractmethod
    def run(self, identifier: str) -> JobRun:
        """Look up a run by its id."""

    @abstractmethod
    def runs(self, name: str) -> Sequence[JobRun]:
        """List the runs with a name, newest first. Some fields may be missing (see `live`). EMR deletes ended runs after some time."""

    @abstractmethod
    def cancel(self, run: JobRun, grace: int) -> None:
        """Request that EMR end a run. If the target supports it, the run first has `grace` seconds to end by itself."""

    def live(self, name: str) -> Sequence[JobRun]:
        """List the runs with a name that have not ended, newest first and with all fields."""
        return [run for run in self.runs(name) if not run.state.ended]

    @contextmanager
    def refusals(self, action: str) -> Iterator[None]:
        """Convert the SDK's errors to `PlatformError`."""
        try:
            yield
        except ClientError as error:
            hint = ""
            if cause_of(error) is Cause.DENIED:
                hint = "; the caller needs the permission that EMR names, and iam:PassRole for the job's role"
            elif code_of(error) in (
                "ResourceNotFoundException",
                "InvalidRequestException",
                "EntityNotFoundException",
            ) and action.startswith("look at"):
                hint = "; is it in this account and region?"
            raise PlatformError(f"cannot {action} ({self.target}): {error}{hint}") from error
        except BotoCoreError as error:
            raise PlatformError(f"cannot {action} ({self.target}): {error}") from error


def command(role: str | None, driver: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> str:
    """Return the command and role of a run as text. Omits the token, which differs between runs of the same job."""
    given = {name: value for name, value in driver.items() if value}
    text = json.dumps([role or "", given, (overrides or {}).get("applicationConfiguration") or []], sort_keys=True)
    return re.sub(rf'((?:{MARKER_SETTING}=[^ "]*/|=kinesis-efo-))[0-9a-f]{{32}}(?=[ "])', r"\1", text)


def _capitalized(value: Any, shape: Any) -> Any:
    """Capitalize the names of parameters, but not the keys of maps, such as tags."""
    match shape.type_name:
        case "structure":
            return {
                f"{name[0].upper()}{name[1:]}": _capitalized(each, shape.members[name]) for name, each in value.items()
            }
        case "list":
            return [_capitalized(each, shape.member) for each in value]
        case _:
            return value


def newest_first(runs: Sequence[JobRun]) -> list[JobRun]:
    """Sort runs by the time they were submitted, the last one first."""
    return sorted(runs, key=lambda run: (run.created, run.id), reverse=True)


def told(state: str, *reasons: str | None) -> str:
    """Describe a state as EMR reports it: its name, and the first reason that is not empty.

    >>> told("FAILED", "", "exit code 1")
    'FAILED: exit code 1'
    """
    reason = next((text for text in reasons if text), "")
    return f"{state}: {' '.join(reason.split())}" if reason else state


STATES = {
    **dict.fromkeys(("PENDING", "SUBMITTED", "SCHEDULED", "QUEUED", "STARTING", "WAITING"), JobRunState.WAITING),
    "RUNNING": JobRunState.RUNNING,
    **dict.fromkeys(("CANCELLING", "CANCEL_PENDING", "STOPPING"), JobRunState.STOPPING),
    **dict.fromkeys(("SUCCESS", "COMPLETED", "SUCCEEDED"), JobRunState.SUCCEEDED),
    **dict.fromkeys(("CANCELLED", "STOPPED"), JobRunState.STOPPED),
    **dict.fromkeys(("FAILED", "INTERRUPTED", "TIMEOUT", "ERROR", "EXPIRED"), JobRunState.FAILED),
}
"""Maps the names of states in the APIs of EMR steps, EMR Serverless, EMR on EKS and Glue to the common states."""
