"""What the infrastructure code raises on purpose. Relies on nothing.

```
InfraError
├── SettingsError   environment files say something wrong; carries every fault found
├── LedgerError     a protected environment would lose or replace something that has an identity
├── UpError         an environment cannot be declared in local AWS
└── PipelineError   a step of the pipeline failed, or refuses to go on
    ├── StalePlanError  a plan is not of what is there, or not of what was reviewed: plan again
    └── UnhealthyError  a job that was started does not run, or does not catch up
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class InfraError(Exception):
    """Base of everything raised on purpose here."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in an environment file.

    Attributes:
        path: Where in the file, as `streams.orders.shards`; empty for the file as a whole.
        value: What is written there; None where something is missing.
        rule: What it must be, as a sentence that goes on after the value, with what to do.
        file: The environment file.
    """

    path: str
    value: object
    rule: str
    file: str = ""

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.path) if part)
        return f"{where}: {self.rule}" + ("" if self.value is None else f"; got {_short(self.value)}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 120 else f"{shown[:117]}..."


class SettingsError(InfraError):
    """Environment files are wrong. All faults are in one message.

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
    """Something in a protected environment would lose its identity: a new ARN, or gone."""


class UpError(InfraError):
    """An environment cannot be declared in local AWS."""


class PipelineError(InfraError):
    """A step of the pipeline failed, or refuses to go on."""


class StalePlanError(PipelineError):
    """A plan is missing, or not of this commit, configuration or state: it must be made again."""


class UnhealthyError(PipelineError):
    """A job that was started does not run, or does not catch up in time."""
