"""How an application's jobs get their permissions: from a policy alone, a role for EMR or Kubernetes, or a role in another account."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from infra.settings.values import OidcArn, PolicyArn, PrincipalArn, RoleName
from kinesis_efo_infra.pipeline.environment import Settings


class PolicyOnly(Settings):
    """A managed policy without a role: attach it to your own role."""

    kind: Literal["policy"] = "policy"


class _Role(Settings):
    """Settings that all kinds of roles have.

    Attributes:
        role_name: Name of the role; default: `<project>-<environment>-<application>`.
        policies: ARNs of additional managed policies, such as for access to checkpoint and output buckets.
        permissions_boundary: ARN of the role's permissions boundary; default: the pipeline's, if there is one.
    """

    role_name: RoleName | None = None
    policies: list[PolicyArn] = Field(default=[])
    permissions_boundary: PolicyArn | None = None


class EmrEc2(_Role):
    """A role with an instance profile, for EMR on EC2."""

    kind: Literal["emr-ec2"]


class EmrServerless(_Role):
    """A job runtime role for EMR Serverless.

    Attributes:
        application_id: The only EMR Serverless application whose jobs may assume the role; default: the declared one, else any.
    """

    kind: Literal["emr-serverless"]
    application_id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,64}$")] | None = None


class Eks(_Role):
    """A role for Kubernetes service accounts, through the cluster's OIDC provider or through EKS Pod Identity.

    Attributes:
        oidc_provider_arn: ARN of the cluster's IAM OIDC provider. Set either this or `cluster`.
        cluster: Name of the EKS cluster, for Pod Identity. The cluster needs the EKS Pod Identity Agent.
        namespace: Kubernetes namespace.
        service_account: Name of the service account. With an OIDC provider, `*` stands for any characters, as EMR on EKS needs. With
            Pod Identity, an exact name; default: the service accounts that EMR on EKS creates for the jobs of this role.
    """

    kind: Literal["eks"]
    oidc_provider_arn: OidcArn | None = None
    cluster: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")] | None = None
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9*]([a-z0-9.*-]{0,251}[a-z0-9*])?$")] | None = (
        None
    )


class OtherAccount(Settings):
    """Access from another account. Only consumers and resource policies are declared here; that account declares everything else.

    Attributes:
        principals: ARNs of the roles (or account roots) that may read.
    """

    kind: Literal["other-account"]
    principals: Annotated[list[PrincipalArn], Field(min_length=1)]


Access = Annotated[PolicyOnly | EmrEc2 | EmrServerless | Eks | OtherAccount, Field(discriminator="kind")]
RoleAccess = EmrEc2 | EmrServerless | Eks
