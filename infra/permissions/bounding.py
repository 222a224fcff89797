"""The boundary of the roles that the pipeline creates, and who may assume the pipeline's own roles."""

from __future__ import annotations

from infra import names
from infra.permissions.scheduling import start_within_boundary
from infra.permissions.scope import Scope, never_others, tagged
from infra.settings import Environment
from kinesis_efo_infra import iam
from kinesis_efo_infra.iam import Condition, Statement
from kinesis_efo_infra.regions import dns_suffix, partition


def boundary(environment: Environment) -> list[Statement]:
    """The most that a job's role may do, whatever policies it has: use the environment's data, and change no permissions."""
    region = environment.region
    scope = Scope(environment)
    s3 = f"s3.*.{dns_suffix(region)}"
    use_keys = ("kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey")
    # A stream of another account is read where that account's policy allows it.
    streams = tuple(dict.fromkeys((*scope.streams, *scope.given_streams)))
    consumers = tuple(f"{each}/consumer/*" for each in streams)
    groups = ("/aws/emr-serverless:*", f"/{names.path(environment)}/*")
    return [
        Statement(
            "Streams",
            tuple(sorted({*iam.READ_STREAM, *iam.POLL_STREAM, *iam.SUBSCRIBE, *iam.WRITE_STREAM})),
            streams + consumers,
        ),
        Statement("Leases", iam.LEASES, scope.tables),
        Statement("Manifest", ("ssm:GetParameter",), scope.parameters),
        *([Statement("ManifestObject", ("s3:GetObject",), scope.manifest_objects)] if scope.manifest_objects else []),
        Statement("OwnKeys", use_keys, scope.keys, conditions=tagged("aws:ResourceTag", environment)),
        *([Statement("GivenKeys", use_keys, scope.given_keys)] if scope.given_keys else []),
        # Whatever key encrypts a bucket: it serves only objects that the role may use.
        Statement(
            "KeysOfBuckets",
            ("kms:Decrypt", "kms:GenerateDataKey"),
            (f"arn:{partition(region)}:kms:*:*:key/*",),
            conditions=(Condition("StringLike", "kms:ViaService", (s3,)),),
        ),
        *_use_buckets(scope),
        Statement("NotTheState", ("s3:*",), (*scope.bucket, f"{scope.bucket[0]}/*"), effect="Deny"),
        *_use_catalog(environment),
        Statement(
            "Logs",
            ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"),
            tuple(names.arn(environment, "logs", f"log-group:{each}") for each in groups),
        ),
        Statement("Metrics", ("cloudwatch:PutMetricData",), ("*",)),
        *(start_within_boundary(environment) if environment.emr else []),
        Statement("NeverRegisterConsumers", iam.REGISTRATION, ("*",), effect="Deny"),
        never_others(environment),
    ]


def boundary_without_pipeline(environment: Environment) -> list[Statement]:
    """The most that a job's role may do where people deploy, who answer for its policies: anything but register consumers."""
    return [
        Statement("WhatItsPoliciesSay", (), ("*",), but_actions=iam.REGISTRATION),
        Statement("NeverRegisterConsumers", iam.REGISTRATION, ("*",), effect="Deny"),
        never_others(environment),
    ]


def _use_buckets(scope: Scope) -> list[Statement]:
    if not scope.job_buckets:
        return []
    return [
        Statement(
            "Buckets",
            iam.USE_OBJECTS,
            tuple(f"{each}/*" for each in scope.job_buckets),
        ),
        Statement(
            "ListBuckets",
            ("s3:ListBucket", *iam.FIND_UPLOADS),
            scope.job_buckets,
        ),
    ]


def _use_catalog(environment: Environment) -> list[Statement]:
    databases = environment.pipeline.databases if environment.pipeline else []
    if not databases:
        return []
    tables = tuple(part for each in databases for part in (f"database/{each}", f"table/{each}/*"))
    # Glue asks for the catalog with everything that is in it, and Spark looks for the database `default` at its start.
    looked_at = ("catalog", "database/default")
    return [
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
            tuple(names.arn(environment, "glue", each) for each in ("catalog", *tables)),
        ),
        Statement(
            "FindDatabases",
            ("glue:GetDatabase",),
            tuple(names.arn(environment, "glue", each) for each in looked_at),
        ),
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
