"""Permissions of the apply role in addition to the plan role's: change the declared resources, and create roles with a boundary."""

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
"""Actions with which the provider configures a stream that it has just created, or that is imported."""
_RUNS_JOBS = ("ec2", "emr-serverless", "elasticmapreduce")


def change_data(environment: Environment) -> list[Statement]:
    """Allow changing streams, tables, manifests, alarms, dashboards, schedules and the state, in addition to `read`."""
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
        # Limit CreateStream by the stream's name only. Limit other actions also by the stream's tags, which CreateStream sets. Source:
        # Service Authorization Reference, Amazon Kinesis Data Streams.
        Statement("CreateStreams", ("kinesis:CreateStream",), scope.streams),
        Statement("TagNewStreams", ("kinesis:AddTagsToStream",), scope.streams, conditions=tags_new(environment)),
        # Omit the condition `tags_new` for imported streams, which may already have owner tags.
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
        # Topics only: other actions could stop any instance. Source: CloudWatch user guide, "Using condition keys to limit alarm actions".
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
    """Allow writing manifests in S3, and deleting them with all their versions."""
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
    """Allow changing policies, and roles with a permissions boundary, in addition to `change_data`."""
    scope = Scope(environment)
    services = tuple(principal(each, partition(environment.region)) for each in _RUNS_JOBS)
    mine, new = tagged("aws:ResourceTag", environment), tagged("aws:RequestTag", environment)
    bounded = (Condition("StringEquals", "iam:PermissionsBoundary", scope.boundaries),)
    return [
        # Require the environment's tags: another environment's prefix may begin with this one's, and IAM names are global. Sources: IAM
        # user guide, "Controlling access to and for IAM users and roles using tags", "Tagging customer managed policies".
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
        # Require a boundary, which limits a role whatever policies are attached to it.
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
        # Do not use tags as a condition: according to the IAM user guide, this is unreliable for PassRole.
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
    """Allow creating keys, changing those with the environment's tags, and using them through AWS services, besides `change_access`."""
    scope = Scope(environment)
    mine = tagged("aws:ResourceTag", environment)
    return [
        # Identify a new key by its tags, because its ARN is not known in advance.
        Statement("CreateKeys", ("kms:CreateKey",), ("*",), conditions=tagged("aws:RequestTag", environment)),
        # Require that the key has no alias yet, because most existing keys of other owners have one.
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
