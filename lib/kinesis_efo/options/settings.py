"""Settings that several parts of the library use, and the options that the source and the sink share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from kinesis_efo.arns import ROLE_ARN
from kinesis_efo.metrics import EXPORTS
from kinesis_efo.options import readers as read
from kinesis_efo.options.readers import Bounds
from kinesis_efo.options.table import Option
from kinesis_efo.positions import Position


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new query starts: at `position` in every shard, or at `bounds` if streams or shards differ.

    `position` is None for `LATEST` and `LEASES`. `from_leases`: whether to start from the checkpoints in the lease table, such as those of
    a KCL application.
    """

    position: Position | None = None
    from_leases: bool = False
    bounds: Bounds | None = None


class Deaggregation(Enum):
    """What to do with KPL aggregates; the values are those of the option `deaggregate`."""

    OFF = "false"
    """Leave aggregates whole."""
    ALL = "true"
    """Unpack all aggregates, whatever the hash keys of their records are."""
    STRICT = "strict"
    """Unpack aggregates, but leave out those with records that belong to other shards, as the KCL does."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often, and after which backoff, to open a failed subscription again.

    There are at most `max_retries` faults without any progress between them (None: no maximum), and no retries after `timeout` seconds
    without any progress. The backoff grows from `base_ms` to `max_ms`, by `factor` from one fault to the next.
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
    role_session_name: str | None = None

    def of(self, application: str) -> AwsSettings:
        """Return these settings with the default session name of an application, unless a session name is given."""
        return replace(self, role_session_name=self.role_session_name or f"kinesis-efo-{application}".rstrip("-")[:64])


MANIFEST_OPTION: Final = Option("manifest", read.text, "a path, ssm:///name or s3://bucket/key", "-",
    "the application's manifest; without it, `streamArn` and `consumerArn`, or the sink's `stream`", "manifest")  # fmt: skip
AWS_OPTIONS: Final = (
    Option("region", read.text, "an AWS region", "the manifest's", "AWS region", "aws.region", of_run=True),
    Option("endpointUrl", read.url, "a URL such as http://127.0.0.1:4566", "the environment's `AWS_ENDPOINT_URL*`",
           "one endpoint for every AWS service", "aws.endpoint_url", of_run=True),
    Option("roleArn", read.matching(ROLE_ARN), "the ARN of a role", "-", "role to assume", "aws.role_arn", of_run=True),
    Option("externalId", read.text, "the external id of the role's trust policy", "-", "goes with `roleArn`",
           "aws.external_id", needs="roleArn", of_run=True, also=("roleExternalId",)),
    Option("roleSessionName", read.text, "a name", "`kinesis-efo-` and the application", "goes with `roleArn`",
           "aws.role_session_name", needs="roleArn", of_run=True),
)  # fmt: skip

METRICS_OPTIONS: Final = (
    Option("metricsExport", read.one_of(*EXPORTS), "otel, emf or none", "`otel`",
           "`otel`: OpenTelemetry; `emf`: CloudWatch EMF lines",
           "metrics.export", of_run=True, formerly=("metrics.export",)),
    Option("metricsEmfTo", read.text, "stdout, stderr or a path", "`stdout`",
           "where EMF lines go; a file is appended to, and may be rotated", "metrics.emf_to", needs="metricsExport=emf", of_run=True, formerly=("metrics.emf.to",)),
    Option("metricsEmfInterval", read.duration(1, 3600), "a duration such as 60s, from 1s to 1h", "`60s`",
           "time between EMF lines", "metrics.emf_interval", needs="metricsExport=emf", of_run=True, formerly=("metrics.emf.interval",)),
)  # fmt: skip
