"""Settings that options are parsed into and that several parts of the library use."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kinesis_efo.options.bounds import Bounds
from kinesis_efo.positions import Position


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new query starts.

    Attributes:
        position: A position for every shard, or None for `LATEST` and `LEASES`.
        from_leases: Start from the checkpoints in the lease table, as a KCL application left them.
        bounds: Positions of streams and shards, where they differ; None: they do not.
    """

    position: Position | None = None
    from_leases: bool = False
    bounds: Bounds | None = None


class Deaggregation(Enum):
    """What becomes of KPL aggregates; the values are those of the option `deaggregate`."""

    OFF = "false"
    """They stay whole."""
    ALL = "true"
    """They are unpacked, whatever their records' hash keys are."""
    STRICT = "strict"
    """They are unpacked. One with records whose hash keys belong to other shards is left out, as the KCL does."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often, and after which backoff, to open a failed subscription again.

    Attributes:
        max_retries: Tolerated faults in a row, without any progress between them; None: as many as `timeout` leaves time for.
        base_ms: First backoff, milliseconds.
        max_ms: Longest backoff, milliseconds.
        factor: Growth of the backoff from one fault to the next.
        timeout: Seconds without any progress after which it is given up.
    """

    max_retries: int | None = None
    base_ms: int = 1_000
    max_ms: int = 10_000
    factor: float = 1.5
    timeout: float = 600.0


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """How to reach AWS. Everything is optional; the SDK's own configuration supplies the rest.

    Attributes:
        region: AWS region; None for the manifest's.
        endpoint_url: One endpoint for every service, like `AWS_ENDPOINT_URL`.
        role_arn: Role to assume, with `external_id` and `role_session_name`.
    """

    region: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    role_session_name: str = "kinesis-efo"
