"""A private S3 bucket: versioned, encrypted with a customer key, and accessible only over TLS."""

from __future__ import annotations

from collections.abc import Mapping

from infra.stacks.cdk import (
    Construct,
    S3Bucket,
    S3BucketLifecycleConfiguration,
    S3BucketLifecycleConfigurationRule,
    S3BucketLifecycleConfigurationRuleAbortIncompleteMultipartUpload,
    S3BucketLifecycleConfigurationRuleExpiration,
    S3BucketLifecycleConfigurationRuleFilter,
    S3BucketLifecycleConfigurationRuleNoncurrentVersionExpiration,
    S3BucketPolicy,
    S3BucketPublicAccessBlock,
    S3BucketServerSideEncryptionConfigurationA,
    S3BucketServerSideEncryptionConfigurationRuleA,
    S3BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultA,
    S3BucketVersioningA,
    S3BucketVersioningVersioningConfiguration,
)
from kinesis_efo_infra import iam
from kinesis_efo_infra.base import keep, policy_document, put
from kinesis_efo_infra.places import Place


class PrivateBucket(Construct):
    """A bucket with its versioning, encryption, lifecycle and policy.

    Args:
        scope: The parent construct.
        name: Name of the bucket, which must be globally unique.
        key_arn: ARN of the customer key that encrypts the objects.
        expire_days: Days after which objects expire, by prefix; other objects do not expire.
        noncurrent_days: Days after which overwritten and deleted versions expire.
        protected: Whether Terraform refuses to destroy the bucket.
        place: Terraform name of the resources.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        name: str,
        key_arn: str,
        expire_days: Mapping[str, int],
        noncurrent_days: int,
        protected: bool,
        place: Place,
    ) -> None:
        super().__init__(scope, f"bucket-{place.now}")
        bucket = put(S3Bucket(self, "bucket", bucket=name, lifecycle=keep(protected)), place)
        self._name, self._arn = bucket.bucket, bucket.arn
        put(
            S3BucketPublicAccessBlock(
                self,
                "access",
                bucket=bucket.id,
                block_public_acls=True,
                block_public_policy=True,
                ignore_public_acls=True,
                restrict_public_buckets=True,
            ),
            place,
        )
        enabled = S3BucketVersioningVersioningConfiguration(status="Enabled")
        put(S3BucketVersioningA(self, "versions", bucket=bucket.id, versioning_configuration=enabled), place)
        by_default = S3BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultA(
            sse_algorithm="aws:kms", kms_master_key_id=key_arn
        )
        # Use a bucket key, with which S3 needs fewer KMS requests.
        rule = S3BucketServerSideEncryptionConfigurationRuleA(
            apply_server_side_encryption_by_default=by_default, bucket_key_enabled=True
        )
        put(S3BucketServerSideEncryptionConfigurationA(self, "encryption", bucket=bucket.id, rule=[rule]), place)
        put(
            S3BucketLifecycleConfiguration(
                self, "lifecycle", bucket=bucket.id, rule=_rules(expire_days, noncurrent_days)
            ),
            place,
        )
        document = policy_document(self, "document", [iam.tls_only(self._arn)], name=f"{place.now}_bucket")
        put(S3BucketPolicy(self, "policy", bucket=bucket.id, policy=document.json), place)

    @property
    def name(self) -> str:
        """Name of the bucket."""
        return self._name

    @property
    def arn(self) -> str:
        """ARN of the bucket."""
        return self._arn


def _rules(expire_days: Mapping[str, int], noncurrent_days: int) -> list[S3BucketLifecycleConfigurationRule]:
    everything = S3BucketLifecycleConfigurationRule(
        id="leftovers",
        status="Enabled",
        filter=[S3BucketLifecycleConfigurationRuleFilter(prefix="")],
        abort_incomplete_multipart_upload=[
            S3BucketLifecycleConfigurationRuleAbortIncompleteMultipartUpload(days_after_initiation=1)
        ],
        noncurrent_version_expiration=[
            S3BucketLifecycleConfigurationRuleNoncurrentVersionExpiration(noncurrent_days=noncurrent_days)
        ],
    )
    return [
        everything,
        *(
            S3BucketLifecycleConfigurationRule(
                id=prefix.strip("/"),
                status="Enabled",
                filter=[S3BucketLifecycleConfigurationRuleFilter(prefix=prefix)],
                expiration=[S3BucketLifecycleConfigurationRuleExpiration(days=days)],
            )
            for prefix, days in expire_days.items()
        ),
    ]
