"""The exceptions of the constructs and of the pipeline.

```
InfraError
├── ArgumentError   an argument of a construct is wrong
├── MissingError    something that synthesis needs is not installed
├── SettingsError   environment files are wrong; the message lists all faults
├── GateError       checkov could not scan, or its scan cannot be trusted
├── AwsError        AWS cannot be called: no credentials, or it cannot be reached
└── PipelineError   a step of the pipeline failed, or refuses to continue
    ├── StalePlanError  a plan does not match the state, the configuration or the review: plan again
    └── UnhealthyError  a job that was started does not run, or does not catch up
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class InfraError(Exception):
    """Base class of all exceptions of the infrastructure code."""


class ArgumentError(InfraError, ValueError):
    """An argument of a construct is wrong; the message contains the construct, the rule, the value, and what to do."""


class MissingError(InfraError, ImportError):
    """Something that synthesis needs is not installed; the message contains the command that installs it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in an environment file.

    Attributes:
        path: Path of the setting in the file, such as `streams.orders.shards`; empty for the file as a whole.
        value: The setting's value in the file; None if it is missing.
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


class GateError(InfraError):
    """checkov could not scan, or its scan cannot be trusted."""


class AwsError(InfraError):
    """AWS cannot be called: there are no credentials, or it cannot be reached."""


class PipelineError(InfraError):
    """A step of the pipeline failed, or refuses to continue."""


class StalePlanError(PipelineError):
    """A plan is missing, or belongs to another commit, configuration or state; plan again."""


class UnhealthyError(PipelineError):
    """A job that was started does not run, or does not catch up in time."""
