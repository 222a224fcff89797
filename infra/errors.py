"""The exceptions of the infrastructure code, those of `kinesis_efo_infra` among them.

```
InfraError
├── ArgumentError   an argument of a construct is wrong
├── MissingError    something that synthesis needs is not installed
├── SettingsError   environment files are wrong; carries every fault found
├── LedgerError     a protected environment would lose or replace a resource that has an identity
├── GateError       checkov could not scan, or its scan cannot be trusted
├── UpError         an environment cannot be declared in local AWS
├── AwsError        AWS cannot be asked: no credentials, or no way to it
├── NotRunError     what a check needs is missing or out of reach, so that nothing was checked
└── PipelineError   a step of the pipeline failed, or refuses to go on
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
    """An environment cannot be declared in local AWS."""


class NotRunError(InfraError):
    """What a check needs is missing or out of reach, so that nothing was checked."""
