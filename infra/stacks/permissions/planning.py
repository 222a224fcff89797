"""Permissions of the plan role: read the declared resources and the state, but not the contents of streams and tables."""

from __future__ import annotations

from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.permissions.pods import see_associations
from infra.stacks.permissions.scheduling import see_schedules
from infra.stacks.permissions.scope import Scope, never_others, tagged, use_environment_key
from kinesis_efo_infra import iam
from kinesis_efo_infra.iam import Condition, Statement


def read(environment: Environment) -> list[Statement]:
    """Allow reading the declared resources and the state, but not records of streams or items of tables."""
    return [*read_data(environment), *read_access(environment)]


def read_data(environment: Environment) -> list[Statement]:
    """Return the part of `read` for streams, tables, manifests, alarms, dashboards and the state."""
    scope = Scope(environment)
    mine = tagged("aws:ResourceTag", environment)
    state_region = environment.state_region or environment.region
    return [
        Statement("ReadState", ("s3:GetObject",), scope.state + scope.record + scope.hmac_key),
        Statement("FindState", ("s3:ListBucket",), scope.bucket),
        Statement("DecryptState", ("kms:Decrypt",), scope.state_keys, conditions=iam.through(state_region, "s3")),
        Statement(
            "ReadStreams",
            (
                "kinesis:DescribeStream",
                "kinesis:DescribeStreamSummary",
                "kinesis:GetResourcePolicy",
                "kinesis:ListStreamConsumers",
                "kinesis:ListTagsForStream",
            ),
            scope.streams + scope.adopted,
        ),
        Statement(
            "ReadConsumers",
            ("kinesis:DescribeStreamConsumer", "kinesis:GetResourcePolicy", "kinesis:ListTagsForResource"),
            scope.consumers,
        ),
        Statement(
            "ReadTables",
            (
                "dynamodb:DescribeContinuousBackups",
                "dynamodb:DescribeTable",
                "dynamodb:DescribeTimeToLive",
                "dynamodb:ListTagsOfResource",
            ),
            scope.tables,
        ),
        Statement(
            "ReadManifests", ("ssm:GetParameter", "ssm:GetParameters", "ssm:ListTagsForResource"), scope.parameters
        ),
        Statement(
            "DecryptManifests",
            ("kms:Decrypt",),
            scope.keys,
            conditions=(*iam.through(environment.region, "ssm"), *mine),
        ),
        *(
            [
                Statement(
                    "DecryptWithGivenKeys",
                    ("kms:Decrypt",),
                    scope.given_keys,
                    conditions=iam.through(environment.region, "ssm"),
                )
            ]
            if scope.given_keys
            else []
        ),
        *_read_manifest_objects(environment, scope),
        Statement("ReadAlarms", ("cloudwatch:DescribeAlarms", "cloudwatch:ListTagsForResource"), scope.alarms),
        Statement("ReadDashboards", ("cloudwatch:GetDashboard",), scope.dashboards),
        # These actions support only the resource `*`.
        Statement("ReadWhatHasNoArn", ("kinesis:DescribeLimits", "kms:ListAliases", "ssm:DescribeParameters"), ("*",)),
        # The apply role also has this policy, so this statement covers both roles.
        never_others(environment),
    ]


def read_access(environment: Environment) -> list[Statement]:
    """Return the part of `read` for policies, roles, keys, and the resources that run jobs."""
    scope = Scope(environment)
    return [
        Statement(
            "ReadPolicies",
            ("iam:GetPolicy", "iam:GetPolicyVersion", "iam:ListPolicyVersions", "iam:ListPolicyTags"),
            scope.policies,
        ),
        Statement(
            "ReadRoles",
            ("iam:GetRole", "iam:ListAttachedRolePolicies", "iam:ListInstanceProfilesForRole", "iam:ListRolePolicies"),
            scope.roles,
        ),
        Statement("ReadProfiles", ("iam:GetInstanceProfile",), scope.profiles),
        Statement(
            "ReadKeys",
            ("kms:DescribeKey", "kms:GetKeyPolicy", "kms:GetKeyRotationStatus", "kms:ListResourceTags"),
            scope.keys,
            conditions=tagged("aws:ResourceTag", environment),
        ),
        *see_associations(environment),
        *_read_jobs(environment),
    ]


def _read_manifest_objects(environment: Environment, scope: Scope) -> list[Statement]:
    """Allow reading manifests in S3."""
    if not scope.manifest_objects:
        return []
    listed = (Condition("StringLike", "s3:prefix", (scope.manifest_prefix,)),)
    return [
        Statement("ReadManifestObjects", ("s3:GetObject", "s3:GetObjectTagging"), scope.manifest_objects),
        Statement("FindManifestObjects", ("s3:ListBucket",), scope.manifest_bucket, conditions=listed),
        *use_environment_key(environment, scope, "DecryptManifestObjects", ("kms:Decrypt",)),
    ]


def _read_jobs(environment: Environment) -> list[Statement]:
    """Allow reading the artifacts bucket, the EMR Serverless application, the schedule group, and the network of the workers."""
    names = Names(environment)
    if environment.emr is None:
        return []
    bucket = names.bucket_arn(names.artifacts_bucket)
    return [
        # The provider reads all properties of a bucket, even undeclared ones.
        Statement(
            "ReadBucket",
            (
                "s3:GetAccelerateConfiguration",
                "s3:GetBucket*",
                "s3:GetEncryptionConfiguration",
                "s3:GetLifecycleConfiguration",
                "s3:GetReplicationConfiguration",
                "s3:ListBucket",
                "s3:ListTagsForResource",
            ),
            (bucket,),
        ),
        Statement(
            "ReadApplications",
            ("emr-serverless:GetApplication", "emr-serverless:ListTagsForResource"),
            (names.arn("emr-serverless", "/applications/*"),),
            conditions=tagged("aws:ResourceTag", environment),
        ),
        *see_schedules(environment),
        *([_see_network()] if environment.emr.serverless and environment.emr.serverless.subnets else []),
    ]


def _see_network() -> Statement:
    """Allow describing networks, possible only for the resource `*`. Deleting a security group requires describing its interfaces."""
    described = ("NetworkInterfaces", "SecurityGroups", "Subnets")
    return Statement("SeeNetwork", tuple(f"ec2:Describe{each}" for each in described), ("*",))
