"""Where a job runs: the three ways of EMR, and the states that a run has in all of them. Relies on errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from kinesis_efo.errors import ConfigurationError

_IDS: Final = {"cluster": r"j-[A-Z0-9]{1,30}", "serverless": r"[0-9a-z]{1,64}", "eks": r"[0-9a-z]{1,64}"}


class Kind(StrEnum):
    """Which EMR."""

    CLUSTER = "cluster"
    SERVERLESS = "serverless"
    EKS = "eks"


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster on EC2, an application of EMR Serverless, or a virtual cluster on EKS.

    >>> Target.parse("serverless:00f1abcdefgh2025")
    Target(kind=<Kind.SERVERLESS: 'serverless'>, id='00f1abcdefgh2025')
    """

    kind: Kind
    id: str

    @classmethod
    def parse(cls, text: str, source: str = "--target") -> Target:
        """Read `cluster:j-...`, `serverless:...` or `eks:...`.

        Raises:
            ConfigurationError: It is none of them; the message names `source`.
        """
        kind, _, identifier = text.partition(":")
        if kind not in _IDS or not re.fullmatch(_IDS[kind], identifier):
            raise ConfigurationError(
                f"{source} must be cluster:j-<id>, serverless:<application id> or eks:<virtual cluster id>; got {text!r}"
            )
        return cls(Kind(kind), identifier)

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


class State(StrEnum):
    """Where a run stands."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of the run."""
        return self in (State.SUCCEEDED, State.STOPPED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Run:
    """A job that was submitted.

    Attributes:
        id: EMR's id of it.
        name: Its name, by which runs of one application are found.
        state: Where it stands.
        told: EMR's own word for the state, and its reason if it gives one.
        created: When it was submitted.
        fingerprint: Of what was submitted (`Job.fingerprint`); empty where it was not submitted by this library.
        marker: The object that asks it to stop; empty where it is stopped through EMR.
        logs: Where its logs are, or will be.
    """

    id: str
    name: str
    state: State
    told: str
    created: datetime
    fingerprint: str = ""
    marker: str = ""
    logs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """What EMR says about a target.

    Attributes:
        release_label: Its release; empty where the job chooses it (EKS).
        spark: Version of Spark, where EMR tells it.
        architecture: `x86_64` or `arm64`, where EMR tells it.
        logs: Where logs go, where that is the target's business.
        faults: Why nothing can be submitted now, as sentences.
    """

    release_label: str
    spark: str = ""
    architecture: str = ""
    logs: str = ""
    faults: Sequence[str] = ()
