"""Additional permissions of the apply role in environments with `emr`: run jobs on EMR, and check whether they are healthy."""

from __future__ import annotations

from infra.settings.model import Environment
from infra.settings.names import Names
from infra.stacks.permissions.scope import Scope, tagged, tags_new, use_environment_key
from kinesis_efo_infra import iam
from kinesis_efo_infra.iam import Condition, Statement

_SERVERLESS = "ops.emr-serverless.amazonaws.com"


def run_jobs(environment: Environment) -> list[Statement]:
    """Allow declaring the resources that run jobs, starting and stopping jobs, and reading their lag. Requires `emr` settings."""
    names = Names(environment)
    assert environment.emr is not None
    scope = Scope(environment)
    bucket = names.bucket_arn(names.artifacts_bucket)
    mine = tagged("aws:ResourceTag", environment)
    targets = [job.target or "" for job in environment.jobs]
    clusters = tuple(
        names.arn("elasticmapreduce", f"cluster/{each.removeprefix('cluster:')}")
        for each in targets
        if each.startswith("cluster:")
    )
    virtual = tuple(
        names.arn("emr-containers", f"/virtualclusters/{each.removeprefix('eks:')}")
        for each in targets
        if each.startswith("eks:")
    )
    other = tuple(
        names.arn("emr-serverless", f"/applications/{each.removeprefix('serverless:')}")
        for each in targets
        if each.startswith("serverless:")
    )
    start = ("emr-serverless:GetApplication", "emr-serverless:ListJobRuns", "emr-serverless:StartJobRun")
    follow = ("emr-serverless:CancelJobRun", "emr-serverless:GetJobRun")
    statements = [
        Statement(
            "WriteBucket",
            (
                "s3:CreateBucket",
                "s3:DeleteBucket",
                "s3:DeleteBucketPolicy",
                "s3:ListBucket",
                "s3:PutBucketPolicy",
                "s3:PutBucketPublicAccessBlock",
                "s3:PutBucketTagging",
                "s3:PutBucketVersioning",
                "s3:PutEncryptionConfiguration",
                "s3:PutLifecycleConfiguration",
                "s3:TagResource",
                "s3:UntagResource",
            ),
            (bucket,),
        ),
        Statement("WriteArtifacts", ("s3:DeleteObject", "s3:GetObject", "s3:PutObject"), (f"{bucket}/*",)),
        *use_environment_key(environment, scope, "EncryptArtifacts", ("kms:Decrypt", "kms:GenerateDataKey")),
        Statement(
            "CreateApplications",
            ("emr-serverless:CreateApplication",),
            ("*",),
            conditions=tagged("aws:RequestTag", environment),
        ),
        Statement(
            "TagNewApplicationsAndRuns",
            ("emr-serverless:TagResource",),
            (names.arn("emr-serverless", "/*"),),
            conditions=tags_new(environment),
        ),
        # EMR Serverless creates its service-linked role with the permissions of the caller that creates the account's first application.
        Statement(
            "CreateServiceRole",
            ("iam:CreateServiceLinkedRole",),
            (names.service_role_arn(_SERVERLESS),),
            conditions=(Condition("StringEquals", "iam:AWSServiceName", (_SERVERLESS,)),),
        ),
        Statement(
            "RunOnApplications",
            (
                *start,
                "emr-serverless:DeleteApplication",
                "emr-serverless:ListTagsForResource",
                "emr-serverless:StartApplication",
                "emr-serverless:StopApplication",
                "emr-serverless:TagResource",
                "emr-serverless:UntagResource",
                "emr-serverless:UpdateApplication",
            ),
            (names.arn("emr-serverless", "/applications/*"),),
            conditions=mine,
        ),
        # Select runs by the tags that `kinesis-efo emr submit` sets: the id of the declared application is not known in advance.
        Statement(
            "FollowRuns",
            follow,
            (names.arn("emr-serverless", "/applications/*/jobruns/*"),),
            conditions=mine,
        ),
        Statement("SeeLeases", ("dynamodb:DescribeTable", "dynamodb:Scan"), scope.tables),
        Statement(
            "SeeBacklog",
            ("kinesis:GetRecords", "kinesis:GetShardIterator", "kinesis:ListShards"),
            scope.streams + scope.adopted,
        ),
        Statement(
            "DecryptBacklog",
            ("kms:Decrypt",),
            scope.keys,
            conditions=(*iam.through(environment.region, "dynamodb", "kinesis"), *mine),
        ),
        Statement("SeeMetrics", ("cloudwatch:GetMetricData",), ("*",)),
    ]
    if environment.emr.serverless and environment.emr.serverless.subnets:
        statements += _place_workers(environment)
    if other:
        statements.append(Statement("RunOnOtherApplications", start, other))
    if clusters:
        actions = ("AddJobFlowSteps", "CancelSteps", "DescribeCluster", "DescribeStep", "ListSteps")
        named = tuple(f"elasticmapreduce:{each}" for each in actions)
        statements.append(Statement("RunOnClusters", named, clusters))
    if virtual:
        actions = ("CancelJobRun", "DescribeJobRun", "DescribeVirtualCluster", "ListJobRuns", "StartJobRun")
        named = tuple(f"emr-containers:{each}" for each in actions)
        statements.append(Statement("RunOnEks", named, virtual + tuple(f"{each}/jobruns/*" for each in virtual)))
    return statements


def _place_workers(environment: Environment) -> list[Statement]:
    """Allow running EMR Serverless workers in a VPC, and declaring the security group for connections between them."""
    names = Names(environment)
    group = (names.arn("ec2", "security-group/*"),)
    return [
        # EMR Serverless creates network interfaces as the application's creator (its user guide, "User access policy examples").
        Statement(
            "CreateInterfaces",
            ("ec2:CreateNetworkInterface",),
            (names.arn("ec2", "network-interface/*"),),
            conditions=(Condition("StringEquals", "aws:CalledViaLast", (_SERVERLESS,)),),
        ),
        Statement("CreateGroup", ("ec2:CreateSecurityGroup",), group, conditions=tagged("aws:RequestTag", environment)),
        Statement("CreateGroupInVpc", ("ec2:CreateSecurityGroup",), (names.arn("ec2", "vpc/*"),)),
        Statement(
            "TagNewGroup",
            ("ec2:CreateTags",),
            group,
            conditions=(Condition("StringEquals", "ec2:CreateAction", ("CreateSecurityGroup",)),),
        ),
        Statement(
            "WriteGroup",
            (
                "ec2:AuthorizeSecurityGroupEgress",
                "ec2:AuthorizeSecurityGroupIngress",
                "ec2:CreateTags",
                "ec2:DeleteSecurityGroup",
                "ec2:DeleteTags",
                "ec2:RevokeSecurityGroupEgress",
                "ec2:RevokeSecurityGroupIngress",
            ),
            group,
            conditions=tagged("aws:ResourceTag", environment),
        ),
    ]
