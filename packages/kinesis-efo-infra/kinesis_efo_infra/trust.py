"""Who may assume the role of jobs: EMR on EC2, EMR Serverless, Glue, or a Kubernetes service account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinesis_efo_infra.checks import OIDC_ARN, is_token
from kinesis_efo_infra.errors import ArgumentError
from kinesis_efo_infra.iam import Condition, Statement
from kinesis_efo_infra.regions import Account


@dataclass(frozen=True, slots=True)
class EmrOnEc2:
    """Lets the instances of EMR on EC2 clusters assume the role, through an instance profile with the role's name."""

    def statement(self, account: Account, role_name: str) -> Statement:  # noqa: ARG002 - all kinds are asked alike
        """Return the statement of the role's trust policy."""
        return Statement("EmrOnEc2", ("sts:AssumeRole",), (), principals={"Service": (account.ec2,)})


@dataclass(frozen=True, slots=True)
class EmrServerless:
    """Lets EMR Serverless jobs of this account assume the role.

    Args:
        application_arn: The only application whose jobs may assume the role; default: any of the account and region.
    """

    application_arn: str | None = None

    def statement(self, account: Account, role_name: str) -> Statement:  # noqa: ARG002 - all kinds are asked alike
        """Return the statement of the role's trust policy."""
        return Statement(
            "EmrServerless",
            ("sts:AssumeRole",),
            (),
            principals={"Service": ("emr-serverless.amazonaws.com",)},
            # Prevent the confused deputy problem: trust only jobs of this account's applications.
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
class Glue:
    """Lets Glue jobs assume the role. They must be in the role's account: `iam:PassRole` only passes roles within an account."""

    def statement(self, account: Account, role_name: str) -> Statement:  # noqa: ARG002 - all kinds are asked alike
        """Return the statement of the role's trust policy."""
        return Statement("Glue", ("sts:AssumeRole",), (), principals={"Service": ("glue.amazonaws.com",)})


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Lets the pods of a Kubernetes service account assume the role, through the cluster's OIDC provider.

    Args:
        oidc_provider_arn: ARN of the cluster's IAM OIDC provider.
        namespace: Kubernetes namespace.
        name: Name of the service account; `*` stands for any characters, as EMR on EKS needs.

    Raises:
        ArgumentError: The provider's ARN is invalid or a reference; it must be literal, because condition keys contain a part of it.
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

    def statement(self, account: Account, role_name: str) -> Statement:  # noqa: ARG002 - all kinds are asked alike
        """Return the statement of the role's trust policy."""
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


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Lets the pods of Kubernetes service accounts assume the role through EKS Pod Identity, which needs no OIDC provider.

    The cluster needs the EKS Pod Identity Agent. Source: Amazon EKS user guide, "Learn how EKS Pod Identity grants pods access".

    Args:
        cluster: Name of the EKS cluster, in the account and region of the role.
        namespace: Kubernetes namespace.
        service_account: Exact name of the service account: Pod Identity associations do not support wildcards. Default: the three
            service accounts that EMR on EKS creates for the jobs of a role; the role's name must then be literal.

    Raises:
        ArgumentError: The name of the service account has a wildcard.

    >>> PodIdentity("analytics", "lake").service_accounts("111122223333", "lake")["driver"]
    'emr-containers-sa-spark-driver-111122223333-u2kzmt'
    """

    cluster: str
    namespace: str
    service_account: str | None = None

    def __post_init__(self) -> None:
        if "*" in (self.service_account or ""):
            raise ArgumentError(
                f"PodIdentity of {self.cluster!r}: service_account must be a name; got {self.service_account!r}: an association "
                "knows no wildcards; leave it out for those of EMR on EKS"
            )

    def service_accounts(self, account_id: str, role_name: str) -> Mapping[str, str]:
        """Return the names of the service accounts, by the kind of pod that uses them.

        Source: AWS command line, `aws emr-containers create-role-associations`.

        Args:
            account_id: The account of the cluster and the role.
            role_name: Name of the role.

        Raises:
            ArgumentError: The role's name is a token, but EMR on EKS derives the names of the service accounts from it.
        """
        if self.service_account is not None:
            return {"pods": self.service_account}
        if is_token(role_name):
            raise ArgumentError(
                f"PodIdentity of {self.cluster!r}: role_name must be a text, as EMR on EKS makes names of it; got {role_name!r}: "
                "write the name itself, or give service_account"
            )
        suffix = f"{account_id}-{_base36(role_name)}"
        return {part: f"emr-containers-sa-spark-{part}-{suffix}" for part in ("client", "driver", "executor")}

    def statement(self, account: Account, role_name: str) -> Statement:
        """Return the statement of the role's trust policy."""
        names = tuple(self.service_accounts(account.account_id, role_name).values())
        return Statement(
            "PodIdentity",
            ("sts:AssumeRole", "sts:TagSession"),
            (),
            principals={"Service": ("pods.eks.amazonaws.com",)},
            # Check the tags that EKS adds to sessions. Otherwise, any principal that may create Pod Identity associations could give
            # this role to any pod of the account.
            conditions=(
                Condition("StringEquals", "aws:SourceAccount", (account.account_id,)),
                Condition(
                    "StringEquals", "aws:RequestTag/eks-cluster-arn", (account.arn("eks", f"cluster/{self.cluster}"),)
                ),
                Condition("StringEquals", "aws:RequestTag/kubernetes-namespace", (self.namespace,)),
                Condition("StringEquals", "aws:RequestTag/kubernetes-service-account", names),
            ),
        )


def _base36(text: str) -> str:
    """Return the bytes of a text as a number in base 36, as EMR on EKS encodes role names."""
    number, digits = int.from_bytes(text.encode(), "big"), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


Trust = EmrOnEc2 | EmrServerless | Glue | ServiceAccount | PodIdentity
