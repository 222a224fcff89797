"""How metrics leave a process: one object. Relies on nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXPORTS: Final = ("otel", "emf", "none")
"""The values of the option `metrics.export`."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where metrics go.

    Attributes:
        export: `otel`, which does nothing until an OpenTelemetry SDK is configured; `emf`; or `none`.
        emf_to: Where EMF lines go: `stdout`, `stderr` or a path, which is appended to.
        emf_interval: Seconds between two sets of EMF lines.
        shards: Most shards of an application that are told apart; the rest is one shard, `other`. 0 tells none apart.
    """

    export: str = "otel"
    emf_to: str = "stdout"
    emf_interval: float = 60.0
    shards: int = 100
