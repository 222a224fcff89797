"""The boundary of the roles that the pipeline creates, and who may assume the pipeline's own roles."""

from __future__ import annotations

from infra import iam, names
from infra.iam import Condition, Statement
from infra.permissions.scope import Scope
from infra.settings import Environment


def boundary(environment: Environment) -> list[Statement]:
    """The most that a job's role may do, whatever policies it has: use data, and change no permissions."""
    region, account = environment.region, environment.account_id
    arn = f"arn:{names.partition(region)}"
    scope = Scope(environment)
    return [
        Statement(
            "Streams",
            tuple(sorted({*iam.READ_STREAM, *iam.POLL_STREAM, *iam.SUBSCRIBE, *iam.WRITE_STREAM})),
            (f"{arn}:kinesis:{region}:*:stream/*",),
        ),
        Statement("Leases", iam.LEASES, (f"{arn}:dynamodb:{region}:{account}:table/*",)),
        Statement("Manifest", ("ssm:GetParameter",), scope.parameters),
        Statement("Keys", ("kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey"), (f"{arn}:kms:*:*:key/*",)),
        Statement(
            "Buckets",
            ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"),
            (f"{arn}:s3:::*/*",),
        ),
        Statement(
            "ListBuckets",
            ("s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads"),
            (f"{arn}:s3:::*",),
        ),
        Statement("NotTheState", ("s3:*",), (*scope.bucket, f"{scope.bucket[0]}/*"), effect="Deny"),
        Statement(
            "Catalog",
            (
                "glue:BatchCreatePartition",
                "glue:CreatePartition",
                "glue:CreateTable",
                "glue:GetDatabase",
                "glue:GetDatabases",
                "glue:GetPartition",
                "glue:GetPartitions",
                "glue:GetTable",
                "glue:GetTables",
                "glue:UpdatePartition",
                "glue:UpdateTable",
            ),
            tuple(f"{arn}:glue:{region}:{account}:{each}" for each in ("catalog", "database/*", "table/*")),
        ),
        Statement(
            "Logs",
            ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"),
            (f"{arn}:logs:{region}:{account}:log-group:*",),
        ),
        Statement("Metrics", ("cloudwatch:PutMetricData",), ("*",)),
        Statement("NeverRegisterConsumers", iam.REGISTRATION, ("*",), effect="Deny"),
    ]


def trust(environment: Environment, provider_arn: str, sid: str, subjects: tuple[str, ...]) -> Statement:
    """Trust policy of a role: only workflows of the repository may assume it, and only in these places.

    Source: docs.github.com, "Configuring OpenID Connect in Amazon Web Services".

    Args:
        environment: The environment.
        provider_arn: GitHub's OIDC provider in this account.
        sid: Id of the statement.
        subjects: What `sub` in GitHub's tokens must be, without the repository.
    """
    assert environment.pipeline is not None
    issuer = names.GITHUB_ISSUER
    repository = environment.pipeline.repository
    return Statement(
        sid,
        ("sts:AssumeRoleWithWebIdentity",),
        (),
        principals={"Federated": (provider_arn,)},
        conditions=(
            Condition("StringEquals", f"{issuer}:aud", ("sts.amazonaws.com",)),
            Condition("StringEquals", f"{issuer}:sub", tuple(f"repo:{repository}:{each}" for each in subjects)),
        ),
    )
