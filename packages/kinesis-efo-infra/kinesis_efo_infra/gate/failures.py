"""The results of a checkov scan: which checks failed, and which of these failures are excused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed.

    Attributes:
        check: Id of the check.
        name: What the check requires.
        resource: Terraform address of the resource that failed the check.
        origin: Name of the resource's stack or plan.
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
    """The result of a scan.

    Attributes:
        failed: Checks that failed and are not excused, without the faults that each scan plants to test itself.
        excused: Checks that failed and are excused.
        reasons: The reason for each excused failure.
        passed: Number of checks passed, by stack or plan.
    """

    failed: Sequence[Failure]
    passed: Mapping[str, int]
    excused: Sequence[Failure] = ()
    reasons: Mapping[Failure, str] = field(default_factory=dict)
