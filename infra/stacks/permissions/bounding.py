"""The permissions boundary of the roles that the pipeline creates, and the trust policies of the pipeline's own roles."""

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
"""CloudWatch namespace of the library's metrics."""
_WRITES = ("s3:Delete*", "s3:Put*")


def boundary(environment: Environment) -> list[Statement]:
    """Return the permissions boundary of jobs' roles, which allows using the environment's data, but not changing permissions."""
    names = Names(environment)
    region = environment.region
    scope = Scope(environment)
    s3 = f"s3.*.{dns_suffix(region)}"
    use_keys = ("kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey")
    # Include streams of other accounts; those accounts' resource policies must allow access as well.
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
        # Allow any key through S3: S3 uses a key only for objects that the role may use.
        Statement(
            "KeysOfBuckets",
            ("kms:Decrypt", "kms:GenerateDataKey"),
            (f"arn:{partition(region)}:kms:*:*:key/*",),
            conditions=(Condition("StringLike", "kms:ViaService", (s3,)),),
        ),
        *_use_buckets(scope),
        # Deny changes to programs, archives and manifests: only the pipeline may write them.
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
    """Return the permissions boundary of jobs' roles without a pipeline, which allows everything except registering consumers."""
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
    # Glue requires permission for the catalog in addition to what it contains, and Spark looks up the database `default` on startup.
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
"""Workflows whose jobs apply plans: the current one and its predecessor, so that a role works with either during an upgrade."""


def trust_to_plan(environment: Environment, provider_arn: str) -> Statement:
    """Return the trust policy of the plan role, for pull requests, and for deployments and drift detection on the branch.

    Args:
        environment: The environment.
        provider_arn: ARN of the account's OIDC provider for GitHub.
    """
    assert environment.pipeline is not None
    return _trust(environment, provider_arn, "Plan", ("pull_request", f"ref:refs/heads/{environment.pipeline.branch}"))


def trust_to_apply(environment: Environment, provider_arn: str) -> Statement:
    """Return the trust policy of the apply role, for jobs in the environment's GitHub environment, which may require an approval.

    Anyone with write access to the repository can name any GitHub environment in a workflow on any branch, and GitHub creates a missing
    one without protection rules. Therefore the policy also requires the branch, and a workflow that may apply.

    Args:
        environment: The environment.
        provider_arn: ARN of the account's OIDC provider for GitHub.
    """
    assert environment.pipeline is not None
    name, ref = Names(environment).qualified, f"refs/heads/{environment.pipeline.branch}"
    repository, _ = github_repository(environment.pipeline.repository)
    own = tuple(f"{repository}/.github/workflows/{each}@{ref}" for each in _WORKFLOWS)
    # For a reusable workflow, the claim contains the workflow's repository and version, not the calling workflow.
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
    """Return a trust policy for workflows of the repository whose tokens have one of the subjects and the given claims.

    Sources: docs.github.com, "OpenID Connect reference" (claims; the two formats of `sub`: repositories that are created, renamed or
    transferred after July 15, 2026 have the one with ids); IAM user guide, "Available keys for AWS OIDC federation"; and
    aws.amazon.com/about-aws/whats-new/2026/01/aws-sts-supports-validation-identity-provider-claims (conditions on other claims, in
    all commercial regions).
    """
    assert environment.pipeline is not None
    given = environment.pipeline.repository
    repository, number = github_repository(given)
    # STS supports conditions on other claims only for GitHub's default issuer, in commercial regions.
    known = partition(environment.region) == "aws" and environment.pipeline.issuer == GITHUB_ISSUER
    # If there is a condition on the repository's id, also accept the subject without ids, which is just as safe then.
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
