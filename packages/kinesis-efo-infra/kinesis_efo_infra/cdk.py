"""Re-exports everything that the constructs use from CDKTF and its AWS provider. No other module imports CDKTF directly."""

from __future__ import annotations

# Import this first: it chooses the engine, and makes the provider load quickly.
from kinesis_efo_infra.engine import ENGINE

# isort: split

from cdktf import (
    DefaultTokenResolver,
    Fn,
    Op,
    Precondition,
    StringConcat,
    TerraformProvider,
    TerraformResource,
    TerraformResourceLifecycle,
    TerraformStack,
    Token,
    Tokenization,
)
from cdktf_cdktf_provider_aws.cloudwatch_dashboard import CloudwatchDashboard
from cdktf_cdktf_provider_aws.cloudwatch_metric_alarm import CloudwatchMetricAlarm
from cdktf_cdktf_provider_aws.data_aws_caller_identity import DataAwsCallerIdentity
from cdktf_cdktf_provider_aws.data_aws_iam_policy_document import (
    DataAwsIamPolicyDocument,
    DataAwsIamPolicyDocumentStatement,
    DataAwsIamPolicyDocumentStatementCondition,
    DataAwsIamPolicyDocumentStatementPrincipals,
)
from cdktf_cdktf_provider_aws.data_aws_partition import DataAwsPartition
from cdktf_cdktf_provider_aws.data_aws_region import DataAwsRegion
from cdktf_cdktf_provider_aws.dynamodb_table import (
    DynamodbTable,
    DynamodbTableAttribute,
    DynamodbTablePointInTimeRecovery,
    DynamodbTableServerSideEncryption,
)
from cdktf_cdktf_provider_aws.eks_pod_identity_association import EksPodIdentityAssociation
from cdktf_cdktf_provider_aws.glue_job import GlueJob, GlueJobCommand, GlueJobExecutionProperty
from cdktf_cdktf_provider_aws.iam_instance_profile import IamInstanceProfile
from cdktf_cdktf_provider_aws.iam_policy import IamPolicy
from cdktf_cdktf_provider_aws.iam_role import IamRole
from cdktf_cdktf_provider_aws.iam_role_policy import IamRolePolicy
from cdktf_cdktf_provider_aws.iam_role_policy_attachment import IamRolePolicyAttachment
from cdktf_cdktf_provider_aws.kinesis_resource_policy import KinesisResourcePolicy
from cdktf_cdktf_provider_aws.kinesis_stream import KinesisStream, KinesisStreamStreamModeDetails
from cdktf_cdktf_provider_aws.kinesis_stream_consumer import KinesisStreamConsumer
from cdktf_cdktf_provider_aws.kms_alias import KmsAlias
from cdktf_cdktf_provider_aws.kms_key import KmsKey
from cdktf_cdktf_provider_aws.s3_object import (
    S3Object,
    S3ObjectOverrideProvider,
    S3ObjectOverrideProviderDefaultTags,
)
from cdktf_cdktf_provider_aws.ssm_parameter import SsmParameter
from constructs import Construct, IConstruct, IValidation
from jsii import implements
