"""What all stacks have in common: the state backend, the AWS provider with its account, and tags."""

from __future__ import annotations

from infra.settings.model import Environment
from infra.settings.names import MANAGED_BY, Names
from infra.stacks.cdk import AwsProvider, AwsProviderDefaultTags, S3Backend, TerraformStack


def default_tags(environment: Environment, managed_by: str = MANAGED_BY) -> dict[str, str]:
    """Return the tags of every resource of a stack."""
    return {**Names(environment).tags, "managed-by": managed_by}


def deploy_to_aws(
    stack: TerraformStack,
    environment: Environment,
    state_key: str,
    *,
    region: str | None = None,
    managed_by: str = MANAGED_BY,
) -> None:
    """Store a stack's state in the environment's bucket, and restrict its deployment to the environment's account.

    Args:
        stack: The stack.
        environment: The environment.
        state_key: Key of the state in the bucket.
        region: Region of the stack's resources; default: the environment's.
        managed_by: Value of the tag `managed-by`.
    """
    S3Backend(
        stack,
        bucket=environment.state_bucket,
        key=state_key,
        region=environment.state_region or environment.region,
        encrypt=True,
    )
    # Lock the state with a file in S3 (Terraform 1.10 and later); CDKTF 0.21 has no typed property for this.
    stack.add_override("terraform.backend.s3.use_lockfile", True)
    stack.add_override("terraform.required_version", ">= 1.10")
    AwsProvider(
        stack,
        "aws",
        region=region or environment.region,
        allowed_account_ids=[environment.account_id],
        default_tags=[AwsProviderDefaultTags(tags=default_tags(environment, managed_by))],
    )
