"""Who may assume a runtime's role: EMR on EC2, EMR Serverless, or a service account of Kubernetes."""

from __future__ import annotations

from dataclasses import dataclass

from kinesis_efo_infra.checks import OIDC_ARN
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.iam import Condition, Statement
from kinesis_efo_infra.regions import Account


@dataclass(frozen=True, slots=True)
class EmrOnEc2:
    """Clusters of EMR on EC2: the role gets an instance profile of its name."""

    def statement(self, account: Account) -> Statement:
        """The statement of the role's trust policy."""
        service = f"ec2.{account.dns_suffix}"
        return Statement("EmrOnEc2", ("sts:AssumeRole",), (), principals={"Service": (service,)})


@dataclass(frozen=True, slots=True)
class EmrServerless:
    """Jobs of EMR Serverless, of this account only.

    Args:
        application_arn: The only application whose jobs may assume the role; default: any of the account and region.
    """

    application_arn: str | None = None

    def statement(self, account: Account) -> Statement:
        """The statement of the role's trust policy."""
        return Statement(
            "EmrServerless",
            ("sts:AssumeRole",),
            (),
            principals={"Service": ("emr-serverless.amazonaws.com",)},
            # Against the confused deputy: only for jobs of this account's applications.
            conditions=(
                Condition("StringEquals", "aws:SourceAccount", (account.account_id,)),
                Condition(
                    "ArnLike",
                    "aws:SourceArn",
                    (self.application_arn or account.arn("emr-serverless", "/applications/*"),),
                ),
            ),
        )


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A service account of a Kubernetes cluster, through the cluster's OIDC provider.

    Args:
        oidc_provider_arn: The cluster's IAM OIDC provider.
        namespace: Kubernetes namespace.
        name: Name of the service account; `*` stands for any characters, as EMR on EKS needs.

    Raises:
        ArgumentError: The ARN of the provider is none. A reference will not do: conditions have a part of it as their names.
    """

    oidc_provider_arn: str
    namespace: str
    name: str

    def __post_init__(self) -> None:
        if not OIDC_ARN.fullmatch(self.oidc_provider_arn):
            raise ArgumentError(
                f"ServiceAccount {self.name!r}: oidc_provider_arn must match {OIDC_ARN.pattern}; "
                f"got {self.oidc_provider_arn!r}: write the ARN itself, since no reference to it can stand in names of conditions"
            )

    def statement(self, account: Account) -> Statement:  # noqa: ARG002 - all kinds are asked alike
        """The statement of the role's trust policy."""
        issuer = self.oidc_provider_arn.partition("oidc-provider/")[2]
        subject = f"system:serviceaccount:{self.namespace}:{self.name}"
        return Statement(
            "ServiceAccount",
            ("sts:AssumeRoleWithWebIdentity",),
            (),
            principals={"Federated": (self.oidc_provider_arn,)},
            conditions=(
                Condition("StringEquals", f"{issuer}:aud", ("sts.amazonaws.com",)),
                Condition("StringLike" if "*" in subject else "StringEquals", f"{issuer}:sub", (subject,)),
            ),
        )


Trust = EmrOnEc2 | EmrServerless | ServiceAccount
