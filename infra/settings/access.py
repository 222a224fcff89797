"""How what reads an application gets its policy: as a policy alone, in a role of EMR or Kubernetes, or in another account."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from infra.settings.values import OidcArn, PolicyArn, PrincipalArn, RoleName
from kinesis_efo_infra.pipeline.environment import Settings


class PolicyOnly(Settings):
    """A managed policy and nothing else: attach it to a role of your own."""

    kind: Literal["policy"] = "policy"


class _Role(Settings):
    """Settings of every kind of role.

    Attributes:
        role_name: Default `<project>-<environment>-<application>`.
        policies: More managed policies to attach, such as for checkpoint and output buckets.
        permissions_boundary: ARN of the role's permissions boundary; default: the pipeline's, if there is one.
    """

    role_name: RoleName | None = None
    policies: list[PolicyArn] = Field(default=[])
    permissions_boundary: PolicyArn | None = None


class EmrEc2(_Role):
    """An instance role with its profile, for EMR on EC2."""

    kind: Literal["emr-ec2"]


class EmrServerless(_Role):
    """A job runtime role for EMR Serverless.

    Attributes:
        application_id: The only EMR Serverless application that may assume it; default: the one that this environment
            declares, else any of the account.
    """

    kind: Literal["emr-serverless"]
    application_id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{1,64}$")] | None = None


class Eks(_Role):
    """A role for Kubernetes service accounts, through the cluster's OIDC provider or through EKS Pod Identity.

    Attributes:
        oidc_provider_arn: The cluster's IAM OIDC provider.
        cluster: In its place, the name of the EKS cluster, for Pod Identity. It must have the EKS Pod Identity Agent.
        namespace: Kubernetes namespace.
        service_account: Name of the service account. With an OIDC provider, `*` stands for any characters, as EMR on EKS needs; with
            Pod Identity, it is a whole name, and by default those that EMR on EKS makes for jobs of this role.
    """

    kind: Literal["eks"]
    oidc_provider_arn: OidcArn | None = None
    cluster: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")] | None = None
    namespace: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    service_account: Annotated[str, StringConstraints(pattern=r"^[a-z0-9*]([a-z0-9.*-]{0,251}[a-z0-9*])?$")] | None = (
        None
    )


class OtherAccount(Settings):
    """For a job in another account: only consumers and resource policies are declared here, the rest there.

    Attributes:
        principals: Roles (or account roots) that may read.
    """

    kind: Literal["other-account"]
    principals: Annotated[list[PrincipalArn], Field(min_length=1)]


Access = Annotated[PolicyOnly | EmrEc2 | EmrServerless | Eks | OtherAccount, Field(discriminator="kind")]
RoleAccess = EmrEc2 | EmrServerless | Eks
