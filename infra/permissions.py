"""What the pipeline's two roles may do, and the most that a role they create may do. Pure; relies on `names` and `documents`.

Everything is bound to what carries the environment's name (or a name that its file gives), to keys that carry its tags, and to its
own state. Actions are those that Terraform's AWS provider calls for the resources that are declared here, per the Service
Authorization Reference; the resource is `*` only where AWS knows no other for an action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from infra import documents, names
from infra.documents import Condition, Statement
from infra.settings import Environment, OwnStream, RoleAccess

_RUNS_JOBS = ("ec2.amazonaws.com", "emr-serverless.amazonaws.com", "elasticmapreduce.amazonaws.com")


class Scope:
    """ARNs of what belongs to an environment, as patterns where names begin with the environment's.

    Args:
        environment: The environment.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        name = environment.environment
        applications = list(environment.applications)
        own = [key for key, stream in environment.streams.items() if isinstance(stream, OwnStream)]
        self.streams = _covered(
            [self._arn("kinesis", f"stream/{name}-*")], (names.stream_arn(environment, key) for key in own)
        )
        # Those of other accounts bring their consumers: nothing is declared on them.
        self.adopted = tuple(
            names.stream_arn(environment, key)
            for key in environment.streams
            if key not in own and names.is_ours(environment, key)
        )
        self.consumers = tuple(f"{each}/consumer/*" for each in self.streams + self.adopted)
        self.tables = _covered(
            [self._arn("dynamodb", f"table/kinesis-efo-{name}-*")],
            (names.lease_table_arn(environment, key) for key in applications),
        )
        self.parameters = (self._arn("ssm", f"parameter/kinesis-efo/{name}/*"),)
        self.alarms = (self._arn("cloudwatch", f"alarm:kinesis-efo/{name}/*"),)
        self.dashboards = (self._iam_like("cloudwatch", f"dashboard/kinesis-efo-{name}"),)
        self.policies = (self._iam_like("iam", f"policy/kinesis-efo-{name}-*"),)
        self.roles = _covered(
            [self._iam_like("iam", f"role/kinesis-efo-{name}-*")],
            (self._iam_like("iam", f"role/{names.role_name(environment, key)}") for key in self._with_roles()),
        )
        self.profiles = tuple(each.replace(":role/", ":instance-profile/") for each in self.roles)
        self.keys = (self._arn("kms", "key/*"),)
        self.aliases = (
            self._arn("kms", f"alias/kinesis-efo/{name}"),
            self._arn("kms", f"alias/kinesis-efo/{name}/*"),
        )
        bucket = f"arn:{names.partition(environment.region)}:s3:::{environment.state_bucket}"
        self.bucket = (bucket,)
        self.state = (f"{bucket}/{names.state_key(environment)}",)
        self.lock = (f"{bucket}/{names.state_key(environment)}.tflock",)
        self.record = (f"{bucket}/{names.record_key(environment)}",)

    @property
    def attachable(self) -> tuple[str, ...]:
        """Policies that the environment's roles may have."""
        given = {arn for key in self._with_roles() for arn in self._access(key).policies}
        return (*self.policies, *sorted(given))

    @property
    def boundaries(self) -> tuple[str, ...]:
        """Permissions boundaries that a role must have one of."""
        given = {self._access(key).permissions_boundary for key in self._with_roles()}
        return (names.boundary_arn(self._environment), *sorted(each for each in given if each))

    def _with_roles(self) -> list[str]:
        applications = self._environment.applications
        return [key for key in applications if isinstance(applications[key].access, RoleAccess)]

    def _access(self, key: str) -> RoleAccess:
        access = self._environment.applications[key].access
        assert isinstance(access, RoleAccess)
        return access

    def _arn(self, service: str, resource: str) -> str:
        return names.arn(self._environment, service, resource)

    def _iam_like(self, service: str, resource: str) -> str:
        """ARN of something that is in no region."""
        region = self._environment.region
        return f"arn:{names.partition(region)}:{service}::{self._environment.account_id}:{resource}"


def _covered(patterns: list[str], arns: Iterable[str]) -> tuple[str, ...]:
    """The patterns, and the ARNs that none of them covers."""
    prefixes = tuple(pattern.rstrip("*") for pattern in patterns)
    return (*patterns, *sorted({arn for arn in arns if not arn.startswith(prefixes)}))


def read(environment: Environment) -> list[Statement]:
    """To plan: look at what is declared and at the state, and at no record of any stream or table."""
    scope = Scope(environment)
    tagged = _tagged("aws:ResourceTag", environment)
    state_region = environment.state_region or environment.region
    return [
        Statement("ReadState", ("s3:GetObject",), scope.state + scope.record),
        Statement("FindState", ("s3:ListBucket",), scope.bucket),
        Statement("DecryptState", ("kms:Decrypt",), scope.keys, conditions=documents.through(state_region, "s3")),
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
            conditions=(*documents.through(environment.region, "ssm"), *tagged),
        ),
        Statement("ReadAlarms", ("cloudwatch:DescribeAlarms", "cloudwatch:ListTagsForResource"), scope.alarms),
        Statement("ReadDashboards", ("cloudwatch:GetDashboard",), scope.dashboards),
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
            conditions=tagged,
        ),
        # AWS knows no resource for these.
        Statement("ReadWhatHasNoArn", ("kinesis:DescribeLimits", "kms:ListAliases", "ssm:DescribeParameters"), ("*",)),
    ]


def change_data(environment: Environment) -> list[Statement]:
    """To apply, on top of `read`: streams, tables, manifests, alarms, and the state."""
    scope = Scope(environment)
    return [
        Statement("WriteState", ("s3:PutObject",), scope.state + scope.record),
        Statement("LockState", ("s3:DeleteObject", "s3:GetObject", "s3:PutObject"), scope.lock),
        Statement(
            "EncryptState",
            ("kms:GenerateDataKey",),
            scope.keys,
            conditions=documents.through(environment.state_region or environment.region, "s3"),
        ),
        Statement(
            "WriteStreams",
            (
                "kinesis:AddTagsToStream",
                "kinesis:CreateStream",
                "kinesis:DecreaseStreamRetentionPeriod",
                "kinesis:DeleteResourcePolicy",
                "kinesis:DeleteStream",
                "kinesis:DisableEnhancedMonitoring",
                "kinesis:EnableEnhancedMonitoring",
                "kinesis:IncreaseStreamRetentionPeriod",
                "kinesis:PutResourcePolicy",
                "kinesis:RegisterStreamConsumer",
                "kinesis:RemoveTagsFromStream",
                "kinesis:StartStreamEncryption",
                "kinesis:StopStreamEncryption",
                "kinesis:TagResource",
                "kinesis:UntagResource",
                "kinesis:UpdateMaxRecordSize",
                "kinesis:UpdateShardCount",
                "kinesis:UpdateStreamMode",
            ),
            scope.streams,
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
        Statement(
            "WriteAlarms",
            (
                "cloudwatch:DeleteAlarms",
                "cloudwatch:PutMetricAlarm",
                "cloudwatch:TagResource",
                "cloudwatch:UntagResource",
            ),
            scope.alarms,
        ),
        Statement("WriteDashboards", ("cloudwatch:DeleteDashboards", "cloudwatch:PutDashboard"), scope.dashboards),
    ]


def change_access(environment: Environment) -> list[Statement]:
    """To apply, on top of `change_data`: roles, which stay within their boundary, and keys."""
    scope = Scope(environment)
    tagged = _tagged("aws:ResourceTag", environment)
    bounded = (Condition("StringEquals", "iam:PermissionsBoundary", scope.boundaries),)
    return [
        Statement(
            "WritePolicies",
            (
                "iam:CreatePolicy",
                "iam:CreatePolicyVersion",
                "iam:DeletePolicy",
                "iam:DeletePolicyVersion",
                "iam:TagPolicy",
                "iam:UntagPolicy",
            ),
            scope.policies,
        ),
        # Whatever policy is attached, a role can do no more than its boundary; without one, it cannot be made.
        Statement(
            "CreateBoundedRoles", ("iam:CreateRole", "iam:PutRolePermissionsBoundary"), scope.roles, conditions=bounded
        ),
        Statement(
            "AttachOwnPolicies",
            ("iam:AttachRolePolicy", "iam:DetachRolePolicy"),
            scope.roles,
            conditions=(Condition("ArnLike", "iam:PolicyARN", scope.attachable), *bounded),
        ),
        Statement(
            "WriteRoles",
            ("iam:DeleteRole", "iam:TagRole", "iam:UntagRole", "iam:UpdateAssumeRolePolicy", "iam:UpdateRole"),
            scope.roles,
        ),
        Statement(
            "PassRolesToJobs",
            ("iam:PassRole",),
            scope.roles,
            conditions=(Condition("StringEquals", "iam:PassedToService", _RUNS_JOBS),),
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
        # A key has no name before it exists: what it is tagged with says whose it is.
        Statement(
            "CreateKeys",
            ("kms:CreateKey", "kms:TagResource"),
            ("*",),
            conditions=_tagged("aws:RequestTag", environment),
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
            conditions=tagged,
        ),
        Statement("WriteAliases", ("kms:CreateAlias", "kms:DeleteAlias", "kms:UpdateAlias"), scope.aliases),
        Statement(
            "UseKeys",
            ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"),
            scope.keys,
            conditions=(*documents.through(environment.region, "dynamodb", "kinesis", "ssm"), *tagged),
        ),
    ]


def policies(environment: Environment) -> Mapping[str, list[Statement]]:
    """The managed policies of the pipeline by the end of their names; several, since a policy has a limit."""
    return {
        "read": read(environment),
        "change-data": change_data(environment),
        "change-access": change_access(environment),
        "boundary": boundary(environment),
    }


def boundary(environment: Environment) -> list[Statement]:
    """The most that a job's role may do, whatever policies it has: use data, and nothing that changes who may do what."""
    region, account = environment.region, environment.account_id
    arn = f"arn:{names.partition(region)}"
    scope = Scope(environment)
    return [
        Statement(
            "Streams",
            tuple(
                sorted({*documents.READ_STREAM, *documents.POLL_STREAM, *documents.SUBSCRIBE, *documents.WRITE_STREAM})
            ),
            (f"{arn}:kinesis:{region}:*:stream/*",),
        ),
        Statement("Leases", documents.LEASES, (f"{arn}:dynamodb:{region}:{account}:table/*",)),
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
        Statement("NeverRegisterConsumers", documents.REGISTRATION, ("*",), effect="Deny"),
    ]


def trust(environment: Environment, provider_arn: str, sid: str, subjects: tuple[str, ...]) -> Statement:
    """Who may assume a role: workflows of the repository that GitHub vouches for, in these places.

    Source: docs.github.com, "Configuring OpenID Connect in Amazon Web Services".

    Args:
        environment: The environment.
        provider_arn: GitHub's OIDC provider in this account.
        sid: Id of the statement.
        subjects: `sub` of the tokens, without the repository.
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


def _tagged(kind: str, environment: Environment) -> tuple[Condition, ...]:
    return (
        Condition("StringEquals", f"{kind}/environment", (environment.environment,)),
        Condition("StringEquals", f"{kind}/managed-by", ("kinesis-efo",)),
    )
