"""The options that the source and the sink share."""

from __future__ import annotations

from typing import Final

from kinesis_efo.arns import ROLE_ARN
from kinesis_efo.metrics import EXPORTS
from kinesis_efo.options import readers as read
from kinesis_efo.options.table import Option

AWS_OPTIONS: Final = (
    Option("region", read.text, "an AWS region", "the manifest's", "AWS region", "aws.region"),
    Option("endpointUrl", read.url, "a URL such as http://127.0.0.1:4566", "the environment's `AWS_ENDPOINT_URL*`",
           "one endpoint for every AWS service", "aws.endpoint_url"),
    Option("roleArn", read.matching(ROLE_ARN), "the ARN of a role", "-", "role to assume", "aws.role_arn"),
    Option("externalId", read.text, "the external id of the role's trust policy", "-", "goes with `roleArn`",
           "aws.external_id", needs="roleArn"),
    Option("roleSessionName", read.text, "a name", "`kinesis-efo`", "goes with `roleArn`",
           "aws.role_session_name", needs="roleArn"),
)  # fmt: skip

METRICS_OPTIONS: Final = (
    Option("metrics.export", read.one_of(*EXPORTS), "otel, emf or none", "`otel`",
           "`otel`: OpenTelemetry, silent until an SDK is configured; `emf`: CloudWatch EMF lines; or `none`",
           "metrics.export"),
    Option("metrics.emf.to", read.text, "stdout, stderr or a path", "`stdout`",
           "where EMF lines go; a file is appended to, and may be rotated", "metrics.emf_to", needs="metrics.export=emf"),
    Option("metrics.emf.interval", read.bounded(read.seconds, 1, 3600), "a duration such as 60s, from 1s to 1h", "`60s`",
           "time between EMF lines", "metrics.emf_interval", needs="metrics.export=emf"),
)  # fmt: skip
