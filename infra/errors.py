"""The exceptions of the infrastructure code, those of the constructs among them.

```
InfraError
├── ArgumentError   an argument of a construct is wrong
├── MissingError    something that synthesis needs is not installed
├── SettingsError   environment files are wrong; carries every fault found
├── LedgerError     a protected environment would lose or replace a resource that has an identity
├── GateError       checkov could not scan, or its scan cannot be trusted
├── UpError         an environment cannot be declared in local AWS
├── AwsError        AWS cannot be asked: no credentials, or no way to it
├── RehearsalError  a deployment to local AWS did not do what one to AWS must do
├── NotRunError     what a check needs is missing or out of reach, so that nothing was checked
└── PipelineError   a step of the pipeline failed, or refuses to go on
    ├── StalePlanError  a plan does not match the state, the configuration or the review: plan again
    └── UnhealthyError  a job that was started does not run, or does not catch up
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinesis_efo_infra.errors import ArgumentError, InfraError, MissingError

__all__ = [
    "ArgumentError",
    "AwsError",
    "Fault",
    "GateError",
    "InfraError",
    "LedgerError",
    "MissingError",
    "NotRunError",
    "PipelineError",
    "RehearsalError",
    "SettingsError",
    "StalePlanError",
    "UnhealthyError",
    "UpError",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in an environment file.

    Attributes:
        path: Where in the file, as `streams.orders.shards`; empty for the file as a whole.
        value: The value found there; None where it is missing.
        rule: What the value must be, and what to do.
        file: The environment file.
    """

    path: str
    value: object
    rule: str
    file: str = ""

    def __str__(self) -> str:
        parts = [part for part in (self.file, self.path, self.rule) if part]
        return ": ".join(parts) + ("" if self.value is None else f"; got {_short(self.value)}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."


class SettingsError(InfraError):
    """Environment files are wrong; the message lists all faults.

    Args:
        faults: Every fault found, in the order of the files.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        count = len(self.faults)
        super().__init__(
            f"{count} fault{'s' if count > 1 else ''}:\n" + "\n".join(f"  {fault}" for fault in self.faults)
        )


class LedgerError(InfraError):
    """A resource of a protected environment would be destroyed, or replaced under another ARN."""


class GateError(InfraError):
    """A scan could not be made, or cannot be trusted."""


class UpError(InfraError):
    """An environment cannot be declared in local AWS."""


class AwsError(InfraError):
    """AWS cannot be asked: there are no credentials, or it cannot be reached."""


class RehearsalError(InfraError):
    """A deployment to local AWS did not do what one to AWS must do."""


class NotRunError(InfraError):
    """What a check needs is missing or out of reach, so that nothing was checked."""


class PipelineError(InfraError):
    """A step of the pipeline failed, or refuses to go on."""


class StalePlanError(PipelineError):
    """A plan is missing, or belongs to another commit, configuration or state; plan again."""


class UnhealthyError(PipelineError):
    """A job that was started does not run, or does not catch up in time."""
