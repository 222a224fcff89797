"""Targets (where jobs run) and job runs with their states, in a common form for all kinds of targets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from kinesis_efo.errors import UsageError

_IDS: Final = {
    "cluster": r"j-[A-Z0-9]{1,30}",
    "serverless": r"[0-9a-z]{1,64}",
    "eks": r"[0-9a-z]{1,64}",
    "glue": r"[\w .-]{1,255}",
}

TARGETS: Final = "cluster:j-<id>, serverless:<application id>, eks:<virtual cluster id> or glue:<job>"


class TargetKind(StrEnum):
    CLUSTER = "cluster"
    SERVERLESS = "serverless"
    EKS = "eks"
    GLUE = "glue"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job runs: an EMR cluster on EC2, an EMR Serverless application, an EMR on EKS virtual cluster, or a Glue job.

    >>> Target.parse("serverless:00f1abcdefgh2025")
    Target(kind=<TargetKind.SERVERLESS: 'serverless'>, id='00f1abcdefgh2025')
    """

    kind: TargetKind
    id: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse `cluster:j-...`, `serverless:...`, `eks:...` or `glue:...`."""
        kind, _, identifier = text.partition(":")
        if kind not in _IDS or not re.fullmatch(_IDS[kind], identifier):
            raise UsageError(f"--target must be {TARGETS}; got {text!r}")
        return cls(TargetKind(kind), identifier)

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


class JobRunState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (JobRunState.SUCCEEDED, JobRunState.STOPPED, JobRunState.FAILED)


@dataclass(frozen=True, slots=True)
class JobRun:
    """A run of a job on EMR.

    Attributes:
        id: EMR's ID of the run.
        name: Name of the run, the same for all runs of an application.
        state: State of the run.
        told: EMR's name for the state, followed by EMR's reason if there is one.
        created: Time of the submission.
        fingerprint: Fingerprint of the job (`Job.fingerprint`); empty if another tool submitted it.
        marker: S3 URI of the stop marker; empty if EMR itself can stop the run gracefully.
        logs: Locations of the logs.
        scheduled: Whether the job has a schedule.
        command: Command and role of the run as text (`platform.command`), which `Platform.same` compares.
    """

    id: str
    name: str
    state: JobRunState
    told: str
    created: datetime
    fingerprint: str = ""
    marker: str = ""
    logs: Sequence[str] = ()
    scheduled: bool = False
    command: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """EMR's description of a target.

    Attributes:
        release_label: EMR release or Glue version; empty if each job chooses it (EKS).
        spark: Spark version; empty if unknown.
        architecture: `x86_64` or `arm64`; empty if unknown.
        logs: S3 location of the logs; empty if each job chooses it.
        faults: A sentence for each reason why a job cannot be submitted now.
    """

    release_label: str
    spark: str = ""
    architecture: str = ""
    logs: str = ""
    faults: Sequence[str] = ()
