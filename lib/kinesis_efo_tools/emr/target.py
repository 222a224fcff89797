"""Targets, on which jobs run, and runs of jobs with their states, for all kinds of targets."""

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
    """The kind of a target."""

    CLUSTER = "cluster"
    SERVERLESS = "serverless"
    EKS = "eks"
    GLUE = "glue"


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster on EC2, an application of EMR Serverless, a virtual cluster on EKS, or a job of Glue.

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
    """The state of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self in (JobRunState.SUCCEEDED, JobRunState.STOPPED, JobRunState.FAILED)


@dataclass(frozen=True, slots=True)
class JobRun:
    """A run of a job on EMR.

    Attributes:
        id: EMR's id of the run.
        name: Its name, the same for all runs of an application.
        state: Its state.
        told: EMR's name for the state, and EMR's reason if it gives one.
        created: When it was submitted.
        fingerprint: Fingerprint of its job (`Job.fingerprint`); empty if another tool submitted it.
        marker: S3 URI of its stop marker; empty if EMR stops it.
        logs: Locations of its logs.
        scheduled: Whether its job has a schedule.
        command: Its command (`platform.command`); `Platform.same` compares it.
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
        release_label: Its release; empty if the job chooses it (EKS).
        spark: Version of Spark; empty if unknown.
        architecture: `x86_64` or `arm64`; empty if unknown.
        logs: S3 location of its logs; empty if the job chooses it.
        faults: Reasons why no job can be submitted now, as sentences.
    """

    release_label: str
    spark: str = ""
    architecture: str = ""
    logs: str = ""
    faults: Sequence[str] = ()
