"""The results of a scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed.

    Attributes:
        check: Its id.
        name: What it requires.
        resource: Terraform address of the resource that failed it.
        origin: The stack or plan.
        guideline: URL of an explanation, if there is one.
    """

    check: str
    name: str
    resource: str
    origin: str
    guideline: str | None = None

    def __str__(self) -> str:
        return f"{self.check} {self.name}: {self.resource} in {self.origin}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a scan found.

    Attributes:
        failed: Checks that failed, except for planted faults.
        excused: Checks that failed and are accepted.
        reasons: Why these are accepted.
        passed: Number of checks passed, by stack or plan.
    """

    failed: Sequence[Failure]
    passed: Mapping[str, int]
    excused: Sequence[Failure] = ()
    reasons: Mapping[Failure, str] = field(default_factory=dict)
