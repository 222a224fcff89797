"""Settings that several parts of the library use, and the options that the source and the sink share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kinesis_efo.arns import ROLE_ARN
from kinesis_efo.metrics import MetricsSettings
from kinesis_efo.options import readers as read
from kinesis_efo.options.readers import Bounds
from kinesis_efo.options.table import Option
from kinesis_efo.positions import Position


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new query, a batch read or an added stream starts: the parsed option `startingPosition` or `newStreamPosition`."""

    position: Position | None = None  # The start position in every shard; None for `LATEST` and `LEASES`
    from_leases: bool = False  # Whether to start from the lease table's checkpoints, such as those of the KCL
    bounds: Bounds | None = None  # Used instead of `position` if streams or shards have separate start positions


class Deaggregation(Enum):
    """What to do with KPL aggregates. The enum's values are the values of the option `deaggregate`."""

    OFF = "false"
    """Deliver each aggregate as one row, without unpacking it."""
    ALL = "true"
    """Unpack all aggregates, regardless of the hash keys of their records."""
    STRICT = "strict"
    """Unpack aggregates, but drop an aggregate if the hash key of one of its records belongs to another shard, as the KCL does."""


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """How often, and with which backoff, to retry a failed call or subscription."""

    max_retries: int | None = None  # Maximum number of consecutive failures; None: unlimited
    base_ms: int = 1_000  # First backoff, in milliseconds
    max_ms: int = 10_000  # Maximum backoff, in milliseconds
    factor: float = 1.5  # The backoff is multiplied by this factor after each failure
    timeout: float = 600.0  # Seconds without progress after which retries end


@dataclass(frozen=True, slots=True)
class AwsSettings:
    """How to reach AWS. Everything is optional and defaults to the SDK's configuration.

    Attributes:
        region: AWS region; None for the manifest's region.
        endpoint_url: A single endpoint for all services, like `AWS_ENDPOINT_URL`.
        role_arn: Role to assume, with `external_id` and `role_session_name`.
        profile: AWS profile. Each host needs it in its AWS configuration files. It takes precedence over keys in the environment.
        credential_provider: Name of a function that returns credentials (`package.module:function`), or of an entry point of the group
            `kinesis_efo.credentials`. Each process that calls AWS imports it.
    """

    region: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    role_session_name: str | None = None
    profile: str | None = None
    credential_provider: str | None = None

    def of(self, application: str) -> AwsSettings:
        """Return these settings with `role_session_name` set: to the configured name, or to a default for `application`."""
        return replace(self, role_session_name=self.role_session_name or f"kinesis-efo-{application}".rstrip("-")[:64])


_PROVIDER: Final = re.compile(r"(?!__main__\b)[A-Za-z_][\w.-]*(:[A-Za-z_][\w.]*)?", re.ASCII)
MANIFEST_OPTION: Final = Option("manifest", read.text, "a path, ssm:///name or s3://bucket/key", "-",
    "the application's manifest; without a manifest, set `streamArn` and `consumerArn` (writing: `stream`)", "manifest")  # fmt: skip
AWS_OPTIONS: Final = (
    Option("region", read.text, "an AWS region", "the manifest's", "AWS region", "aws.region", of_run=True),
    Option("endpointUrl", read.url, "a URL such as http://127.0.0.1:4566", "the environment's `AWS_ENDPOINT_URL*`",
           "one endpoint for every AWS service", "aws.endpoint_url", of_run=True),
    Option("roleArn", read.matching(ROLE_ARN), "the ARN of a role", "-", "role to assume", "aws.role_arn", of_run=True),
    Option("externalId", read.text, "the external id of the role's trust policy", "-", "external id for assuming `roleArn`",
           "aws.external_id", needs="roleArn", of_run=True, also=("roleExternalId",)),
    Option("awsProfile", read.text, "the name of an AWS profile", "the environment's `AWS_PROFILE`",
           "profile to use, from the AWS configuration files of each host", "aws.profile", of_run=True),
    Option("credentialProvider", read.matching(_PROVIDER), "package.module:function, which other processes can import, or the name of an entry point", "-",
           "function that returns credentials, or its entry point in the group `kinesis_efo.credentials`; called again before they expire", "aws.credential_provider", of_run=True),
)  # fmt: skip


_EXPORT: Final = re.compile(r"(otel|none|emf)|emf:(.*?\S)(?::(\d\w*))?", re.IGNORECASE)


def _metrics(text: str) -> MetricsSettings:
    if not (found := _EXPORT.fullmatch(text.strip())):
        raise ValueError(text)
    word, to, period = found.groups()
    export: Any = (word or "emf").lower()
    return MetricsSettings(export, to or "stdout", read.duration(1, 3600)(period or "60s"))


METRICS_OPTIONS: Final = (
    Option("metricsExport", _metrics, "otel, none, emf, or emf with a place and a period such as emf:stderr or emf:/var/log/m.log:60s", "`otel`",
           "`otel`: OpenTelemetry; `emf`: CloudWatch EMF lines, every 60 s to `stdout` by default; you may rotate a file",
           "metrics", of_run=True, formerly=("metrics.export",)),
)  # fmt: skip
_PART: Final = "give it with 'metricsExport', such as emf:stderr:60s"
OBSOLETE_OPTIONS: Final = (
    Option("roleSessionName", read.text, "a name", "-", "goes with `roleArn`", "aws.role_session_name", needs="roleArn", of_run=True,
           instead="give 'awsProfile' a profile with role_arn and role_session_name"),
    Option("metricsEmfTo", read.text, "stdout, stderr or a path", "-", "where EMF lines go", "metrics.emf_to",
           formerly=("metrics.emf.to",), instead=_PART),
    Option("metricsEmfInterval", read.duration(1, 3600), "a duration such as 60s, from 1s to 1h", "-", "time between EMF lines",
           "metrics.emf_interval", formerly=("metrics.emf.interval",), instead=_PART),
)  # fmt: skip
"""Obsolete options, which the source and the sink still accept. The documentation does not list them."""
