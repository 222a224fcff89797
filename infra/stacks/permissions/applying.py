"""What the role that applies may do besides planning: change the declared resources, and make roles with a boundary."""

from __future__ import annotations

from infra.settings.model import Environment, OwnStream
from infra.stacks.permissions.pods import change_associations
from infra.stacks.permissions.scheduling import set_schedules
from infra.stacks.permissions.scope import Scope, tagged, tags_new, use_environment_key
from kinesis_efo_infra import iam
from kinesis_efo_infra.iam import Condition, Statement
from kinesis_efo_infra.regions import partition, principal

_COMPLETE = (
    "kinesis:EnableEnhancedMonitoring",
    "kinesis:IncreaseStreamRetentionPeriod",
    "kinesis:PutResourcePolicy",
    "kinesis:RegisterStreamConsumer",
    "kinesis:StartStreamEncryption",
)
"""What the provider does with a stream that it has just created, or that the file takes over."""
_RUNS_JOBS = ("ec2", "emr-serverless", "elasticmapreduce")


def change_data(environment: Environment) -> list[Statement]:
    """Besides `read`: change streams, tables, manifests, alarms, dashboards, schedules and the state."""
    scope = Scope(environment)
    completing = (*_COMPLETE, *(("kinesis:UpdateStreamWarmThroughput",) if _warmed(environment) else ()))
    return [
        Statement("WriteState", ("s3:PutObject",), scope.state + scope.record),
        Statement("LockState", ("s3:DeleteObject", "s3:GetObject", "s3:PutObject"), scope.lock),
        Statement(
            "EncryptState",
            ("kms:GenerateDataKey",),
            scope.state_keys,
            conditions=iam.through(environment.state_region or environment.region, "s3"),
        ),
        # A stream is created by its name, and all else goes by its tags as well, which it has from the first (CreateStream). Source:
        # Service Authorization Reference, Amazon Kinesis Data Streams.
        Statement("CreateStreams", ("kinesis:CreateStream",), scope.streams),
        Statement("TagNewStreams", ("kinesis:AddTagsToStream",), scope.streams, conditions=tags_new(environment)),
        # What the file takes over may have such tags already.
        *([Statement("TakeOver", ("kinesis:AddTagsToStream", *completing), scope.imported)] if scope.imported else []),
        Statement(
            "WriteStreams",
            (
                *completing,
                "kinesis:AddTagsToStream",
                "kinesis:DecreaseStreamRetentionPeriod",
                "kinesis:DeleteResourcePolicy",
                "kinesis:DeleteStream",
                "kinesis:DisableEnhancedMonitoring",
                "kinesis:RemoveTagsFromStream",
                "kinesis:StopStreamEncryption",
                "kinesis:TagResource",
                "kinesis:UntagResource",
                "kinesis:UpdateMaxRecordSize",
                "kinesis:UpdateShardCount",
                "kinesis:UpdateStreamMode",
            ),
            scope.streams,
            conditions=tagged("aws:ResourceTag", environment),
        ),
        Statement(
            "WriteConsumers",
            (
                "kinesis:DeleteResourcePolicy",
                "kinesis:DeregisterStreamConsumer",
                "kinesis:PutResourcePolicy",
                "kinesis:RegisterStreamConsumer",
                "kinesis:TagResource",
                "kinesis:UntagResource",
            ),
            scope.consumers + scope.adopted,
        ),
        Statement(
            "WriteTables",
            (
                "dynamodb:CreateTable",
                "dynamodb:DeleteTable",
                "dynamodb:TagResource",
                "dynamodb:UntagResource",
                "dynamodb:UpdateContinuousBackups",
                "dynamodb:UpdateTable",
            ),
            scope.tables,
        ),
        Statement(
            "WriteManifests",
            ("ssm:AddTagsToResource", "ssm:DeleteParameter", "ssm:PutParameter", "ssm:RemoveTagsFromResource"),
            scope.parameters,
        ),
        *_write_manifest_objects(environment, scope),
        Statement(
            "WriteAlarms",
            ("cloudwatch:DeleteAlarms", "cloudwatch:TagResource", "cloudwatch:UntagResource"),
            scope.alarms,
        ),
        # An alarm could stop or terminate any instance. Source: CloudWatch user guide, "Using condition keys to limit alarm actions".
        Statement(
            "PutNotifyingAlarms",
            ("cloudwatch:PutMetricAlarm",),
            scope.alarms,
            conditions=(Condition("ForAllValues:StringLike", "cloudwatch:AlarmActions", scope.topics),),
        ),
        Statement("WriteDashboards", ("cloudwatch:DeleteDashboards", "cloudwatch:PutDashboard"), scope.dashboards),
        *(set_schedules(environment) if environment.emr else []),
    ]


def _warmed(environment: Environment) -> bool:
    return any(isinstance(each, OwnStream) and each.warm_throughput_mib for each in environment.streams.values())


def _write_manifest_objects(environment: Environment, scope: Scope) -> list[Statement]:
    """Write the manifests that are in S3, and delete them with all their versions."""
    if not scope.manifest_objects:
        return []
    listed = (Condition("StringLike", "s3:prefix", (scope.manifest_prefix,)),)
    return [
        Statement(
            "WriteManifestObjects",
            ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObject"),
            scope.manifest_objects,
        ),
        Statement("FindManifestVersions", ("s3:ListBucketVersions",), scope.manifest_bucket, conditions=listed),
        *use_environment_key(environment, scope, "EncryptManifestObjects", ("kms:GenerateDataKey",)),
    ]


def change_access(environment: Environment) -> list[Statement]:
    """Besides `change_data`: change policies, and roles within their boundary."""
    scope = Scope(environment)
    services = tuple(principal(each, partition(environment.region)) for each in _RUNS_JOBS)
    mine, new = tagged("aws:ResourceTag", environment), tagged("aws:RequestTag", environment)
    bounded = (Condition("StringEquals", "iam:PermissionsBoundary", scope.boundaries),)
    return [
        # Another environment's name may begin like this one's, and names of IAM are the same in all regions: so a name is not
        # enough, and what is changed must have the environment's tags. IAM tells those of roles and of policies (IAM user guide,
        # "Controlling access to and for IAM users and roles using tags"; "Tagging customer managed policies").
        Statement("CreatePolicies", ("iam:CreatePolicy",), scope.policies, conditions=new),
        Statement(
            "WritePolicies",
            (
                "iam:CreatePolicyVersion",
                "iam:DeletePolicy",
                "iam:DeletePolicyVersion",
                "iam:TagPolicy",
                "iam:UntagPolicy",
            ),
            scope.policies,
            conditions=mine,
        ),
        # A role can do no more than its boundary, whatever policy is attached; without a boundary, it cannot be made.
        Statement("CreateBoundedRoles", ("iam:CreateRole",), scope.roles, conditions=(*bounded, *new)),
        Statement("BoundRoles", ("iam:PutRolePermissionsBoundary",), scope.roles, conditions=(*bounded, *mine)),
        Statement(
            "AttachOwnPolicies",
            ("iam:AttachRolePolicy", "iam:DetachRolePolicy"),
            scope.roles,
            conditions=(Condition("ArnLike", "iam:PolicyARN", scope.attachable), *bounded, *mine),
        ),
        Statement(
            "WriteRoles",
            ("iam:DeleteRole", "iam:TagRole", "iam:UntagRole", "iam:UpdateAssumeRolePolicy", "iam:UpdateRole"),
            scope.roles,
            conditions=mine,
        ),
        Statement(
            "TagNewRolesAndPolicies",
            ("iam:TagPolicy", "iam:TagRole"),
            scope.roles + scope.policies,
            conditions=tags_new(environment),
        ),
        # Not by tags: IAM's user guide calls that unreliable for PassRole.
        Statement(
            "PassRolesToJobs",
            ("iam:PassRole",),
            scope.roles,
            conditions=(Condition("StringEquals", "iam:PassedToService", services),),
        ),
        Statement(
            "WriteProfiles",
            (
                "iam:AddRoleToInstanceProfile",
                "iam:CreateInstanceProfile",
                "iam:DeleteInstanceProfile",
                "iam:RemoveRoleFromInstanceProfile",
                "iam:TagInstanceProfile",
                "iam:UntagInstanceProfile",
            ),
            scope.profiles,
        ),
        *change_associations(environment, scope.roles),
    ]


def change_keys(environment: Environment) -> list[Statement]:
    """Besides `change_access`: make keys, change those with the environment's tags, and use them through the services that do."""
    scope = Scope(environment)
    mine = tagged("aws:ResourceTag", environment)
    return [
        # A key has no name before it exists, so its tags say whose it is.
        Statement("CreateKeys", ("kms:CreateKey",), ("*",), conditions=tagged("aws:RequestTag", environment)),
        # A new key has no alias yet, either; somebody else's mostly has one.
        Statement(
            "TagNewKeys",
            ("kms:TagResource",),
            scope.keys,
            conditions=(*tags_new(environment), Condition("Null", "kms:ResourceAliases", ("true",))),
        ),
        Statement(
            "WriteKeys",
            (
                "kms:CreateAlias",
                "kms:DeleteAlias",
                "kms:EnableKeyRotation",
                "kms:PutKeyPolicy",
                "kms:ScheduleKeyDeletion",
                "kms:TagResource",
                "kms:UntagResource",
                "kms:UpdateAlias",
                "kms:UpdateKeyDescription",
            ),
            scope.keys,
            conditions=mine,
        ),
        Statement("WriteAliases", ("kms:CreateAlias", "kms:DeleteAlias", "kms:UpdateAlias"), scope.aliases),
        Statement(
            "UseKeys",
            ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"),
            scope.keys,
            conditions=(*iam.through(environment.region, "dynamodb", "kinesis", "ssm"), *mine),
        ),
        *(
            [
                Statement(
                    "UseGivenKeys",
                    ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"),
                    scope.given_keys,
                    conditions=iam.through(environment.region, "dynamodb", "kinesis", "ssm"),
                )
            ]
            if scope.given_keys
            else []
        ),
    ]
