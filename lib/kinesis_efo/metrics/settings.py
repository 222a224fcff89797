"""The settings for exporting metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

EXPORTS: Final = ("otel", "emf", "none")
"""The values of the option `metrics.export`."""


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where to send metrics, and in how much detail.

    Attributes:
        export: `otel`, which does nothing until an OpenTelemetry SDK is configured; `emf`; or `none`.
        emf_to: Destination of EMF lines: `stdout`, `stderr`, or the path of a file to append to.
        emf_interval: Seconds between two sets of EMF lines.
        shards: Most shards of an application with metrics of their own; the rest shares the shard `other`. 0: no metrics by shard.
    """

    export: str = "otel"
    emf_to: str = "stdout"
    emf_interval: float = 60.0
    shards: int = 100
