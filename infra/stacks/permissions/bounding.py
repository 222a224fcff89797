"""The boundary of the roles that the pipeline creates, and who may assume the pipeline's own roles."""

from __future__ import annotations

from collections.abc import Mapping

from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.permissions.scheduling import start_within_boundary
from infra.stacks.permissions.scope import Scope, never_others, tagged
from kinesis_efo_infra import iam
from kinesis_efo_infra.iam import Condition, Statement
from kinesis_efo_infra.pipeline.deployment import GITHUB_ISSUER, github_repository
from kinesis_efo_infra.regions import dns_suffix, partition

_NAMESPACE = "KinesisEfo"
"""The namespace of the library's metrics."""
_WRITES = ("s3:Delete*", "s3:Put*")


def boundary(environment: Environment) -> list[Statement]:
    """The most that a job's role may do, whatever policies it has: use the environment's data, and change no permissions."""
    names = Names(environment)
    region = environment.region
    scope = Scope(environment)
    s3 = f"s3.*.{dns_suffix(region)}"
    use_keys = ("kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey")
    # A stream of another account is read where that account's policy allows it.
    streams = tuple(dict.fromkeys((*scope.streams, *scope.given_streams)))
    consumers = tuple(f"{each}/consumer/*" for each in streams)
    groups = ("/aws/emr-serverless:*", f"/{names.path}/*")
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
        # What jobs run and where they find their streams is written by the pipeline.
        *([Statement("Programs", _WRITES, scope.run_objects, effect="Deny")] if scope.run_objects else []),
        Statement("NotTheState", ("s3:*",), (*scope.bucket, f"{scope.bucket[0]}/*"), effect="Deny"),
        *_use_catalog(environment),
        Statement(
            "Logs",
            ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"),
            tuple(names.arn("logs", f"log-group:{each}") for each in groups),
        ),
        Statement(
            "Metrics",
            ("cloudwatch:PutMetricData",),
            ("*",),
            conditions=(Condition("StringLike", "cloudwatch:namespace", (_NAMESPACE, f"{names.path.strip('/')}/*")),),
        ),
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
    names = Names(environment)
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
            tuple(names.arn("glue", each) for each in ("catalog", *tables)),
        ),
        Statement(
            "FindDatabases",
            ("glue:GetDatabase",),
            tuple(names.arn("glue", each) for each in looked_at),
        ),
    ]


_WORKFLOWS = ("deploy-environment.yml", "deploy.yml")
"""The workflows whose jobs apply: the present one, and the one of before, so that it does not matter which is merged first."""


def trust_to_plan(environment: Environment, provider_arn: str) -> Statement:
    """Trust policy of the role that plans: pull requests plan, deployments do, and the nightly look for drift on the branch.

    Args:
        environment: The environment.
        provider_arn: GitHub's OIDC provider in this account.
    """
    assert environment.pipeline is not None
    return _trust(environment, provider_arn, "Plan", ("pull_request", f"ref:refs/heads/{environment.pipeline.branch}"))


def trust_to_apply(environment: Environment, provider_arn: str) -> Statement:
    """Trust policy of the role that applies: only a job in this GitHub environment, and so only after its approval.

    Whoever can write to the repository can name any environment in a workflow on any branch, and GitHub makes one without rules
    if there is none. So the branch, and the workflow of that branch, must be right as well.

    Args:
        environment: The environment.
        provider_arn: GitHub's OIDC provider in this account.
    """
    assert environment.pipeline is not None
    name, ref = Names(environment).qualified, f"refs/heads/{environment.pipeline.branch}"
    repository, _ = github_repository(environment.pipeline.repository)
    own = tuple(f"{repository}/.github/workflows/{each}@{ref}" for each in _WORKFLOWS)
    # Of a reusable workflow, the claim names its repository and version, and not who called it.
    workflows = tuple(environment.pipeline.workflows) or own
    claims = {"environment": (name,), "ref": (ref,), "job_workflow_ref": workflows}
    return _trust(environment, provider_arn, "Apply", (f"environment:{name}",), claims)


def _trust(
    environment: Environment,
    provider_arn: str,
    sid: str,
    subjects: tuple[str, ...],
    claims: Mapping[str, tuple[str, ...]] | None = None,
) -> Statement:
    """Only workflows of the repository may assume the role, and only in these places.

    Sources: docs.github.com, "OpenID Connect reference" (claims; both forms of `sub`, of which a repository that is created, renamed
    or transferred after July 15, 2026 has the one with ids); IAM user guide, "Available keys for AWS OIDC federation", and
    aws.amazon.com/about-aws/whats-new/2026/01/aws-sts-supports-validation-identity-provider-claims (other claims are conditions,
    in all commercial regions).
    """
    assert environment.pipeline is not None
    given = environment.pipeline.repository
    repository, number = github_repository(given)
    # Only for the issuer that all of GitHub shares.
    known = partition(environment.region) == "aws" and environment.pipeline.issuer == GITHUB_ISSUER
    # With the repository's id as a condition of its own, the form without ids is as good.
    forms = (given, repository) if number and known else (given,)
    also = {**({"repository_id": (number,)} if number else {}), **(claims or {})} if known else {}
    wanted = {
        "aud": ("sts.amazonaws.com",),
        "sub": tuple(f"repo:{form}:{subject}" for form in forms for subject in subjects),
        **also,
    }
    return Statement(
        sid,
        ("sts:AssumeRoleWithWebIdentity",),
        (),
        principals={"Federated": (provider_arn,)},
        conditions=tuple(
            Condition("StringEquals", f"{environment.pipeline.issuer}:{claim}", values)
            for claim, values in wanted.items()
        ),
    )
