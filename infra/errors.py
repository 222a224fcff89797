"""The exceptions of the infrastructure code, including those of `kinesis_efo_infra`.

```
InfraError
├── ArgumentError   an argument of a construct is wrong
├── MissingError    something that synthesis needs is not installed
├── SettingsError   environment files are wrong; carries every fault found
├── LedgerError     a protected environment would lose or replace a resource that has an identity
├── GateError       checkov could not scan, or its scan cannot be trusted
├── UpError         an environment cannot be declared in the local AWS emulator
├── AwsError        AWS cannot be called: no credentials, or it cannot be reached
├── NotRunError     a check could not run, because something that it needs is missing or cannot be reached
└── PipelineError   a step of the pipeline failed, or refuses to continue
    ├── StalePlanError  a plan does not match the state, the configuration or the review: plan again
    └── UnhealthyError  a job that was started does not run, or does not catch up
```
"""

from __future__ import annotations

from kinesis_efo_infra.errors import (
    ArgumentError,
    AwsError,
    Fault,
    GateError,
    InfraError,
    MissingError,
    PipelineError,
    SettingsError,
    StalePlanError,
    UnhealthyError,
)

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
    "SettingsError",
    "StalePlanError",
    "UnhealthyError",
    "UpError",
]


class LedgerError(InfraError):
    """A resource of a protected environment would be destroyed, or replaced under another ARN."""


class UpError(InfraError):
    """An environment cannot be declared in the local AWS emulator."""


class NotRunError(InfraError):
    """A check could not run, because something that it needs is missing or cannot be reached."""
