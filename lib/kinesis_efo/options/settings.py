"""Parsed options that several parts of the library use."""

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
        from_leases: Start from the checkpoints in the lease table, such as those of a KCL application.
        bounds: Positions of streams and shards if they differ; None if they do not.
    """

    position: Position | None = None
    from_leases: bool = False
    bounds: Bounds | None = None


class Deaggregation(Enum):
    """What to do with KPL aggregates; the values are those of the option `deaggregate`."""

    OFF = "false"
    """Leave them whole."""
    ALL = "true"
    """Unpack them, whatever their records' hash keys are."""
    STRICT = "strict"
    """Unpack them, but leave out those with records that belong to other shards, as the KCL does."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often, and after which backoff, to open a failed subscription again.

    Attributes:
        max_retries: Tolerated faults in a row, without any progress between them; None: only `timeout` limits them.
        base_ms: First backoff, milliseconds.
        max_ms: Longest backoff, milliseconds.
        factor: Growth of the backoff from one fault to the next.
        timeout: Seconds without any progress after which there are no more retries.
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
