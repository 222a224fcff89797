"""What stacks have in common: where their state is, which account they go to, and the tags of everything in them."""

from __future__ import annotations

from infra.cdk import AwsProvider, AwsProviderDefaultTags, S3Backend, TerraformStack
from infra.settings import Environment

MANAGED_BY = "kinesis-efo"


def default_tags(environment: Environment, managed_by: str = MANAGED_BY) -> dict[str, str]:
    """Tags of every resource."""
    return {"environment": environment.environment, "managed-by": managed_by, **environment.tags}


def deploy_to_aws(
    stack: TerraformStack,
    environment: Environment,
    state_key: str,
    *,
    region: str | None = None,
    managed_by: str = MANAGED_BY,
) -> None:
    """Keep the stack's state in the environment's bucket, and deploy it to its account only.

    Args:
        stack: The stack.
        environment: The environment.
        state_key: Where the state is in the bucket.
        region: Where the stack goes; default: the environment's region.
        managed_by: Who its resources belong to, as their tag says.
    """
    S3Backend(
        stack,
        bucket=environment.state_bucket,
        key=state_key,
        region=environment.state_region or environment.region,
        encrypt=True,
    )
    # Terraform's own lock file in S3 (1.10 and later); CDKTF 0.21 has no typed property for it.
    stack.add_override("terraform.backend.s3.use_lockfile", True)
    stack.add_override("terraform.required_version", ">= 1.10")
    AwsProvider(
        stack,
        "aws",
        region=region or environment.region,
        allowed_account_ids=[environment.account_id],
        default_tags=[AwsProviderDefaultTags(tags=default_tags(environment, managed_by))],
    )
